// The heartbeat thread, with its own connection and event loop. It renews every lease that the main thread holds, one
// statement per tenant and interval, as long as the main event loop is not blocked.
import '../../database/connections/navigator.ts';
import { type MessagePort, parentPort, workerData } from 'node:worker_threads';
import type pg from 'pg';
import { idleInTransactionMs, keepAliveAfterMs, openSession } from '../../database/connections/session-limits.ts';
import { createTypeParsers } from '../../database/connections/value-formats.ts';
import { clientOf, Servers } from '../../database/servers/servers.ts';
import { isNodeError } from '../../database/sql-errors.ts';
import { type LiveRow, renewStatement, toLiveJob } from '../../jobs/claim/lease.ts';
import type { FromThread, HeartbeatOptions, ToThread } from './heartbeat.ts';

/** The role with which the connection was opened. */
const noRole = 'none';

const options = workerData as HeartbeatOptions & { inbox: MessagePort };
const port = parentPort;
if (port === null) throw new Error('the heartbeat runs in a thread of a daemon');

/** schema → lease ids. */
const held = new Map<string, Set<string>>();
/** Schemas whose last renewal failed. */
const failing = new Set<string>();
/** schema → role, quoted. */
const roles = new Map<string, string>();
const pulse = new Int32Array(options.pulse);
let lastPulse = Atomics.load(pulse, 0);
let pulseSeenAt = performance.now();
const servers = new Servers(options.url);
const Client = clientOf(servers);
let client: pg.Client | undefined;
/** There is no pooler, so session settings stay. */
let isDirect = false;
let currentRole = noRole;
let stopped = false;
let timer: NodeJS.Timeout | undefined;
let renewing = false;

port.on('message', (message: ToThread) => {
  switch (message.kind) {
    case 'hold': {
      if (held.size === 0) pulseSeenAt = performance.now();
      const leases = held.get(message.schema) ?? new Set<string>();
      held.set(message.schema, leases.add(message.leaseId));
      if (message.role !== undefined) roles.set(message.schema, message.role);
      if (timer === undefined && !renewing) schedule();
      break;
    }
    case 'drop': {
      const leases = held.get(message.schema);
      leases?.delete(message.leaseId);
      if (leases?.size === 0) {
        held.delete(message.schema);
        failing.delete(message.schema);
        roles.delete(message.schema);
      }
      break;
    }
    case 'reconnect':
      void disconnect();
      break;
    case 'stop':
      stopped = true;
      clearTimeout(timer);
      void disconnect().then(() => process.exit(0));
      break;
  }
});

/** Without leases there is nothing to renew, and the thread sleeps until it gets one. */
function schedule(): void {
  clearTimeout(timer);
  timer = undefined;
  if (stopped || held.size === 0) return;
  timer = setTimeout(() => void renewAll(), options.intervalMs * (0.9 + Math.random() * 0.1));
}

async function renewAll(): Promise<void> {
  if (renewing) return;
  renewing = true;
  try {
    if (mainLoopIsBlocked()) post({ kind: 'stalled' });
    else for (const schema of healthyFirst()) await renew(schema, held.get(schema) ?? new Set());
  } finally {
    renewing = false;
    schedule();
  }
}

/** A tenant whose node is down must not delay the renewals of others beyond their leases. */
function healthyFirst(): string[] {
  const schemas = [...held.keys()];
  return [...schemas.filter((schema) => !failing.has(schema)), ...schemas.filter((schema) => failing.has(schema))];
}

/** A process whose event loop is blocked must lose its leases, because its handlers cannot be stopped. */
function mainLoopIsBlocked(): boolean {
  const now = performance.now();
  const current = Atomics.load(pulse, 0);
  // Without leases the main thread sends no pulse, and there is nothing to lose.
  if (current !== lastPulse || held.size === 0) {
    lastPulse = current;
    pulseSeenAt = now;
  }
  return now - pulseSeenAt > options.stallMs;
}

async function renew(schema: string, leases: Set<string>): Promise<void> {
  const leaseIds = [...leases];
  if (leaseIds.length === 0) return;
  const sentAt = process.hrtime.bigint();
  try {
    const { text, values } = renewStatement(schema, leaseIds, options.leaseSeconds);
    const rows = await query<LiveRow>(schema, text, values);
    failing.delete(schema);
    post({ kind: 'renewed', schema, leaseIds, sentAt, live: rows.map(toLiveJob) });
  } catch (error) {
    // The state is unknown, not lost: the main thread trusts the lease until the last successful renewal expires.
    post({ kind: 'failed', schema, message: error instanceof Error ? error.message : String(error) });
    failing.add(schema);
    // The server that answered is not the one that is down.
    if (!isNodeError(error)) await disconnect();
  }
}

async function query<R extends object>(schema: string, text: string, values: unknown[]): Promise<R[]> {
  client ??= await connect();
  const using = client;
  // A connection that does not answer is destroyed while there is time for another try.
  const timeout = setTimeout(
    () => (using as unknown as { connection: { stream: { destroy(): void } } }).connection.stream.destroy(),
    options.timeoutMs,
  );
  try {
    const hasBegun = await assumeRole(using, schema);
    const { rows } = await using.query<R>(text, values);
    if (hasBegun) await using.query('commit');
    return rows;
  } finally {
    clearTimeout(timeout);
  }
}

/**
 * Sets the tenant's role for the session or, behind a pooler, for a transaction; returns true for a transaction. Uses
 * no role if it does not exist any more.
 */
async function assumeRole(using: pg.Client, schema: string): Promise<boolean> {
  const role = roles.get(schema) ?? noRole;
  if (isDirect ? role === currentRole : role === noRole) return false;
  try {
    await using.query(isDirect ? `set role ${role}` : `begin; set local role ${role}`);
    if (isDirect) currentRole = role;
    return !isDirect;
  } catch {
    roles.delete(schema);
    currentRole = noRole;
    await using.query(isDirect ? 'set role none' : 'rollback');
    return false;
  }
}

async function connect(): Promise<pg.Client> {
  const fresh = new Client({
    connectionString: servers.url,
    connectionTimeoutMillis: options.timeoutMs,
    keepAlive: true,
    keepAliveInitialDelayMillis: keepAliveAfterMs,
    application_name: 'leasehold-heartbeat',
    types: createTypeParsers(),
  });
  fresh.on('error', () => {});
  fresh.on('end', () => {
    if (client === fresh) client = undefined;
  });
  await fresh.connect();
  const limits = { statementMs: options.timeoutMs, lockMs: options.timeoutMs, idleInTransactionMs };
  isDirect = (await openSession(fresh, limits)).direct;
  currentRole = noRole;
  return fresh;
}

async function disconnect(): Promise<void> {
  const old = client;
  client = undefined;
  servers.suspect();
  await old?.end().catch(() => {});
}

function post(message: FromThread): void {
  options.inbox.postMessage(message);
}
