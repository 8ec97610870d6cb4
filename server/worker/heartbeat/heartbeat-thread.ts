// The heartbeat thread, with its own connection and event loop. It renews every lease that the main thread holds, one
// statement per tenant and interval, as long as the main event loop is not blocked. In a cluster there is a connection
// to each node, so that a node or a coordinator that does not answer delays no tenant of another node. The thread starts
// beside the first claims of its daemon, so the driver is loaded a moment later.
import { type MessagePort, parentPort, workerData } from 'node:worker_threads';
import type { StatementOnNode } from '../../database/nodes/tenant-nodes.ts';
import type { LiveJob } from '../../jobs/claim/lease.ts';
import type { RenewalConnection } from './renewal-connection.ts';
import { flags, hasLeases, readLeases } from './shared-leases.ts';

export interface HeartbeatOptions {
  url: string;
  intervalMs: number;
  leaseSeconds: number;
  stallMs: number;
  timeoutMs: number;
  /** Words that both threads read and write, see shared-leases.ts. */
  flags: SharedArrayBuffer;
  leases: SharedArrayBuffer;
}

// The messages between the main thread and this one: plain data only.
export type ToThread =
  /** Sent before the first lease of the tenant is added under this number. `onNode`: in a cluster, its renewal. */
  | {
      kind: 'tenant';
      number: number;
      schema: string;
      role: string | undefined;
      onNode: StatementOnNode | undefined;
    }
  | { kind: 'leases'; buffer: SharedArrayBuffer }
  /** There are leases again. */
  | { kind: 'wake' }
  | { kind: 'reconnect' }
  | { kind: 'stop' };

export interface Renewal {
  schema: string;
  leaseIds: readonly string[];
  sentAt: bigint;
  /** The jobs that the leases still own. */
  live: LiveJob[];
}

export type FromThread =
  | ({ kind: 'renewed' } & Renewal)
  | { kind: 'failed'; schema: string; message: string }
  | { kind: 'stalled' };

const options = workerData as HeartbeatOptions & { inbox: MessagePort };
const port = parentPort;
if (port === null) throw new Error('the heartbeat runs in a thread of a daemon');

const shared = new Int32Array(options.flags);
let leases = options.leases;
/** Number of the tenant → schema. */
const schemas = new Map<number, string>();
/** Schemas whose last renewal failed. */
const failing = new Set<string>();
/** Schema → role, quoted. */
const roles = new Map<string, string>();
/** Schema → the renewal on its node. Without one, it goes to the server of `url`. */
const onNodes = new Map<string, StatementOnNode>();
let lastPulse = Atomics.load(shared, flags.pulse);
let pulseSeenAt = performance.now();
const connections = new Map<string, RenewalConnection>();
/** Nodes whose renewals are in progress. */
const renewing = new Set<string>();
// Before the first renewal, and not as late as that: a deployment may replace the files of an idle daemon.
const loadAfterMs = 500;
const loading = setTimeout(() => void connectionTo(undefined).catch(() => {}), loadAfterMs);
let stopped = false;
let timer: NodeJS.Timeout | undefined;

port.on('message', (message: ToThread) => {
  switch (message.kind) {
    case 'tenant':
      schemas.set(message.number, message.schema);
      if (message.onNode === undefined) onNodes.delete(message.schema);
      else onNodes.set(message.schema, message.onNode);
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
      void disconnect();
      break;
    case 'stop':
      stopped = true;
      clearTimeout(timer);
      clearTimeout(loading);
      void disconnect().then(() => process.exit(0));
      break;
  }
});

wake();

function wake(): void {
  if (timer !== undefined) return;
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
    Atomics.store(shared, flags.asleep, 1);
    // The main thread adds a lease before it reads the flag, so at least one of the two sees what the other wrote.
    if (!hasLeases(leases)) return;
    Atomics.store(shared, flags.asleep, 0);
  }
  timer = setTimeout(renewAll, options.intervalMs * (0.9 + Math.random() * 0.1));
}

function renewAll(): void {
  timer = undefined;
  const held = readHeld();
  if (mainLoopIsBlocked(held.size)) post({ kind: 'stalled' });
  else for (const [node, ofNode] of byNode(held)) void renewOn(node, ofNode);
  schedule();
}

async function renewOn(node: string, held: [string, string[]][]): Promise<void> {
  if (renewing.has(node)) return;
  renewing.add(node);
  for (const [schema, leaseIds] of healthyFirst(held)) await renew(schema, leaseIds);
  renewing.delete(node);
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

function byNode(held: Map<string, string[]>): Map<string, [string, string[]][]> {
  const groups = new Map<string, [string, string[]][]>();
  for (const entry of held) {
    const node = onNodes.get(entry[0])?.node ?? '';
    const group = groups.get(node);
    if (group === undefined) groups.set(node, [entry]);
    else group.push(entry);
  }
  return groups;
}

/** A tenant whose renewals fail must not delay those of others beyond their leases. */
function healthyFirst(held: [string, string[]][]): [string, string[]][] {
  return [...held.filter(([schema]) => !failing.has(schema)), ...held.filter(([schema]) => failing.has(schema))];
}

/** A process whose event loop is blocked must lose its leases, because its handlers cannot be stopped. */
function mainLoopIsBlocked(heldCount: number): boolean {
  const now = performance.now();
  const current = Atomics.load(shared, flags.pulse);
  // Without leases the main thread sends no pulse, and there is nothing to lose.
  if (current !== lastPulse || heldCount === 0) {
    lastPulse = current;
    pulseSeenAt = now;
  }
  return now - pulseSeenAt > options.stallMs;
}

async function renew(schema: string, leaseIds: string[]): Promise<void> {
  const sentAt = process.hrtime.bigint();
  const onNode = onNodes.get(schema);
  try {
    const live = await (await connectionTo(onNode)).renew(schema, leaseIds, onNode);
    if (live === 'moved') {
      // Through the coordinator, until the main thread knows the new node.
      if (onNodes.get(schema) === onNode) onNodes.delete(schema);
      return renew(schema, leaseIds);
    }
    failing.delete(schema);
    post({ kind: 'renewed', schema, leaseIds, sentAt, live });
  } catch (error) {
    // The state is unknown, not lost: the main thread trusts the lease until the last successful renewal expires.
    post({ kind: 'failed', schema, message: error instanceof Error ? error.message : String(error) });
    failing.add(schema);
  }
}

async function connectionTo(onNode: StatementOnNode | undefined): Promise<RenewalConnection> {
  const { RenewalConnection } = await import('./renewal-connection.ts');
  const { node, url } = onNode ?? { node: '', url: options.url };
  let connection = connections.get(node);
  if (connection === undefined) {
    connection = new RenewalConnection({ ...options, url }, roles);
    connections.set(node, connection);
  }
  return connection;
}

async function disconnect(): Promise<void> {
  await Promise.all([...connections.values()].map((connection) => connection.disconnect()));
}

function post(message: FromThread): void {
  options.inbox.postMessage(message);
}
