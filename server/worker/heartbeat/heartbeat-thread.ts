// The heartbeat thread, with its own connection and event loop. It renews every lease that the main thread holds, one
// statement per tenant and interval, as long as the main event loop is not blocked. The thread starts beside the first
// claims of its daemon, so the driver is loaded a moment later.
import { type MessagePort, parentPort, workerData } from 'node:worker_threads';
import type { FromThread, HeartbeatOptions, ToThread } from './heartbeat.ts';
import type { RenewalConnection } from './renewal-connection.ts';

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
let connection: RenewalConnection | undefined;
// Before the first renewal, and not as late as that: a deployment may replace the files of an idle daemon.
const loadAfterMs = 500;
const loading = setTimeout(() => void connectionOf().catch(() => {}), loadAfterMs);
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
