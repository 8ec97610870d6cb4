// The heartbeat thread, with its own connection and event loop. It renews every lease that the main thread holds, one
// statement per tenant and interval, as long as the main event loop is not blocked. The thread starts beside the first
// claims of its daemon, so the driver is loaded a moment later.
import { type MessagePort, parentPort, workerData } from 'node:worker_threads';
import type { FromThread, HeartbeatOptions, ToThread } from './heartbeat-messages.ts';
import type { RenewalConnection } from './renewal-connection.ts';
import { hasLeases, readLeases, signs } from './shared-leases.ts';

const options = workerData as HeartbeatOptions & { inbox: MessagePort };
const port = parentPort;
if (port === null) throw new Error('the heartbeat runs in a thread of a daemon');

const shared = new Int32Array(options.signs);
let leases = options.leases;
/** Number → schema. */
const schemas = new Map<number, string>();
/** Schemas whose last renewal failed. */
const failing = new Set<string>();
/** schema → role, quoted. */
const roles = new Map<string, string>();
let lastPulse = Atomics.load(shared, signs.pulse);
let pulseSeenAt = performance.now();
let connection: RenewalConnection | undefined;
// Before the first renewal, and not as late as that: a deployment may replace the files of an idle daemon.
const loadAfterMs = 500;
const loading = setTimeout(() => void connectionOf().catch(() => {}), loadAfterMs);
let stopped = false;
let timer: NodeJS.Timeout | undefined;
let renewing = false;

port.on('message', (message: ToThread) => {
  switch (message.kind) {
    case 'tenant':
      schemas.set(message.number, message.schema);
      if (message.role === undefined) roles.delete(message.schema);
      else roles.set(message.schema, message.role);
      break;
    case 'leases':
      leases = message.buffer;
      wake();
      break;
    case 'wake':
      wake();
      break;
    case 'reconnect':
      void connection?.disconnect();
      break;
    case 'stop':
      stopped = true;
      clearTimeout(timer);
      clearTimeout(loading);
      void Promise.resolve(connection?.disconnect()).then(() => process.exit(0));
      break;
  }
});

wake();

function wake(): void {
  if (timer !== undefined || renewing) return;
  // Without leases the main thread sent no pulse.
  pulseSeenAt = performance.now();
  schedule();
}

/** Without leases there is nothing to renew: the thread sleeps until it is woken. */
function schedule(): void {
  clearTimeout(timer);
  timer = undefined;
  if (stopped) return;
  if (!hasLeases(leases)) {
    Atomics.store(shared, signs.asleep, 1);
    // The main thread adds a lease before it reads the sign: one of both sees what the other wrote.
    if (!hasLeases(leases)) return;
    Atomics.store(shared, signs.asleep, 0);
  }
  timer = setTimeout(() => void renewAll(), options.intervalMs * (0.9 + Math.random() * 0.1));
}

async function renewAll(): Promise<void> {
  if (renewing) return;
  timer = undefined;
  renewing = true;
  const held = readHeld();
  try {
    if (mainLoopIsBlocked(held.size)) post({ kind: 'stalled' });
    else for (const [schema, leaseIds] of healthyFirst(held)) await renew(schema, leaseIds);
  } finally {
    renewing = false;
    schedule();
  }
}

/** Schema → lease ids. */
function readHeld(): Map<string, string[]> {
  const held = new Map<string, string[]>();
  for (const [number, leaseIds] of readLeases(leases)) {
    const schema = schemas.get(number);
    if (schema !== undefined) held.set(schema, leaseIds);
  }
  return held;
}

/** A tenant whose node is down must not delay the renewals of others beyond their leases. */
function healthyFirst(held: Map<string, string[]>): [string, string[]][] {
  const all = [...held];
  return [...all.filter(([schema]) => !failing.has(schema)), ...all.filter(([schema]) => failing.has(schema))];
}

/** A process whose event loop is blocked must lose its leases, because its handlers cannot be stopped. */
function mainLoopIsBlocked(heldCount: number): boolean {
  const now = performance.now();
  const current = Atomics.load(shared, signs.pulse);
  // Without leases the main thread sends no pulse, and there is nothing to lose.
  if (current !== lastPulse || heldCount === 0) {
    lastPulse = current;
    pulseSeenAt = now;
  }
  return now - pulseSeenAt > options.stallMs;
}

async function renew(schema: string, leaseIds: string[]): Promise<void> {
  const sentAt = process.hrtime.bigint();
  try {
    const live = await (await connectionOf()).renew(schema, leaseIds);
    failing.delete(schema);
    post({ kind: 'renewed', schema, leaseIds, sentAt, live });
  } catch (error) {
    // The state is unknown, not lost: the main thread trusts the lease until the last successful renewal expires.
    post({ kind: 'failed', schema, message: error instanceof Error ? error.message : String(error) });
    failing.add(schema);
  }
}

async function connectionOf(): Promise<RenewalConnection> {
  const { RenewalConnection } = await import('./renewal-connection.ts');
  connection ??= new RenewalConnection(options, roles);
  return connection;
}

function post(message: FromThread): void {
  options.inbox.postMessage(message);
}
