// The main thread's side of the heartbeat: the leases that this daemon holds, how long it may trust each, and the
// listeners for lost leases and stop requests.
import { MessageChannel, type MessagePort, receiveMessageOnPort, type Worker } from 'node:worker_threads';
import type { Schema } from '../../database/identifiers.ts';
import type { StatementOnNode } from '../../database/nodes/tenant-nodes.ts';
import type { LiveJob } from '../../jobs/claim/lease.ts';
import { monotonicMs } from '../../kernel/clock.ts';
import type { Logger } from '../../kernel/logger.ts';
import type { Service } from '../../kernel/service.ts';
import { startThread } from '../threads/start-thread.ts';
import type { FromThread, HeartbeatOptions, Renewal, ToThread } from './heartbeat-thread.ts';
import { flags, SharedLeases } from './shared-leases.ts';

/** The jobs of one lease, as the worker loop knows them. */
export interface HeldLease {
  readonly schema: Schema;
  readonly leaseId: string;
  readonly jobIds: string[];
  /** The lease no longer owns the job. The handler must stop and write nothing more. */
  onLost(jobId: string): void;
  /** A pause or cancel was requested. Called with every renewal until the job has ended. */
  onStopRequested(job: LiveJob): void;
}

export interface HeartbeatListeners {
  renewed?(schema: string, leases: number): void;
  /** Called with every renewal until the job has ended. */
  stopRequested?(job: LiveJob): void;
  lost?(jobs: number): void;
  failed?(): void;
}

// Often enough that a busy event loop is not mistaken for a blocked one.
const pulseMs = 100;
// A handler that begins later than this after its stop requests were read reads them again. Most begin much sooner.
const startWithinMs = 500;

export class Heartbeat implements Service {
  readonly name = 'heartbeat';
  #url: string;
  #intervalMs: number;
  #leaseMs: number;
  #marginMs: number;
  #stallMs: number;
  #logger: Logger;
  #listeners: HeartbeatListeners;
  #roleOf: (schema: Schema) => string | undefined;
  #renewalOnNode: (schema: Schema) => StatementOnNode | undefined;
  readonly #flags = new Int32Array(new SharedArrayBuffer(8));
  readonly #shared = new SharedLeases();
  /** What the thread knows of tenants, by schema. */
  readonly #tenants = new Map<
    Schema,
    { number: number; role: string | undefined; onNode: StatementOnNode | undefined }
  >();
  #leases = new Map<string, { lease: HeldLease; trustedUntilMs: number }>();
  #thread: Worker | undefined;
  #inbox: MessagePort | undefined;
  #timer: NodeJS.Timeout | undefined;
  #stopping = false;
  /** The number of failed renewals since the last successful one. */
  #failures = 0;

  constructor(options: {
    url: string;
    heartbeatSeconds: number;
    leaseSeconds: number;
    stallSeconds: number;
    logger: Logger;
    listeners?: HeartbeatListeners;
    /** Returns the database role of a tenant, if it has one. */
    roleOf?(schema: Schema): string | undefined;
    /** In a cluster, returns the renewal for the node of a tenant. */
    renewalOnNode?(schema: Schema): StatementOnNode | undefined;
  }) {
    this.#url = options.url;
    this.#intervalMs = options.heartbeatSeconds * 1000;
    this.#leaseMs = options.leaseSeconds * 1000;
    // The handler must have stopped before another daemon may claim the job. The margin is one interval, but at most a
    // quarter of the lease.
    this.#marginMs = Math.min(this.#intervalMs, this.#leaseMs / 4);
    this.#stallMs = options.stallSeconds * 1000;
    this.#logger = options.logger;
    this.#listeners = options.listeners ?? {};
    this.#roleOf = options.roleOf ?? (() => undefined);
    this.#renewalOnNode = options.renewalOnNode ?? (() => undefined);
  }

  async start(): Promise<void> {
    if (this.#thread !== undefined) return;
    this.#stopping = false;
    this.#spawn();
    if (this.#leases.size > 0) this.#beginPulse();
  }

  async stop(): Promise<void> {
    this.#stopping = true;
    clearInterval(this.#timer);
    const thread = this.#thread;
    this.#thread = undefined;
    if (thread === undefined) return;
    const gone = new Promise<void>((resolve) => thread.once('exit', () => resolve()));
    thread.postMessage({ kind: 'stop' } satisfies ToThread);
    // A thread that hangs in a dead connection is terminated.
    const timer = setTimeout(() => void thread.terminate(), 2000);
    await gone;
    clearTimeout(timer);
    this.#inbox?.close();
  }

  /** Renews the lease until `drop`. `claimSentAt` is the monotonic time before the claim was sent. */
  hold(lease: HeldLease, claimSentAt: bigint): void {
    this.#leases.set(lease.leaseId, { lease, trustedUntilMs: this.#trust(claimSentAt) });
    this.#beginPulse();
    const isMoved = this.#shared.add(lease.leaseId, this.#numberOf(lease.schema));
    if (isMoved) this.#post({ kind: 'leases', buffer: this.#shared.buffer });
    // After the lease was added: the thread looks for leases once more before it sleeps.
    if (Atomics.exchange(this.#flags, flags.asleep, 0) === 1) this.#post({ kind: 'wake' });
  }

  drop(lease: HeldLease): void {
    if (this.#leases.delete(lease.leaseId)) this.#shared.remove(lease.leaseId);
  }

  #numberOf(schema: Schema): number {
    const known = this.#tenants.get(schema);
    const role = this.#roleOf(schema);
    const onNode = this.#renewalOnNode(schema) ?? known?.onNode;
    const isCurrent = known?.role === role && known?.onNode?.guard === onNode?.guard;
    if (known !== undefined && isCurrent) return known.number;
    const number = known?.number ?? this.#tenants.size + 1;
    this.#tenants.set(schema, { number, role, onNode });
    this.#post({ kind: 'tenant', number, schema, role, onNode });
    return number;
  }

  /**
   * Returns false if the lease has expired, for example while the process was suspended. Nothing may then start under
   * it.
   */
  isTrusted(leaseId: string): boolean {
    const entry = this.#leases.get(leaseId);
    if (entry !== undefined && entry.trustedUntilMs > monotonicMs()) return true;
    // A renewal may be waiting in the inbox.
    return this.trustedForMs(leaseId) > 0;
  }

  /** Returns the milliseconds for which the lease may still be trusted; zero or less if it has expired. */
  trustedForMs(leaseId: string): number {
    this.#receive();
    const entry = this.#leases.get(leaseId);
    return entry === undefined ? 0 : entry.trustedUntilMs - monotonicMs();
  }

  /**
   * Returns until when a handler may begin without another read of its stop requests, by `monotonicMs()`. Infinity if
   * the lease is not held: then nothing may begin, whatever was requested.
   */
  startUntilMs(leaseId: string): number {
    const entry = this.#leases.get(leaseId);
    return entry === undefined ? Number.POSITIVE_INFINITY : entry.trustedUntilMs - this.#trust(0n) + startWithinMs;
  }

  /** Reconnects to the current server. */
  reconnect(): void {
    this.#post({ kind: 'reconnect' });
  }

  /** Runs only while leases are held, so an idle daemon has no timer. */
  #beginPulse(): void {
    if (this.#timer !== undefined || this.#stopping) return;
    Atomics.add(this.#flags, flags.pulse, 1);
    this.#timer = setInterval(() => this.#tick(), pulseMs);
  }

  #trust(sentAt: bigint): number {
    return Number(sentAt / 1000n) / 1000 + this.#leaseMs - this.#marginMs;
  }

  #spawn(): void {
    const { port1, port2 } = new MessageChannel();
    const options: HeartbeatOptions = {
      url: this.#url,
      intervalMs: this.#intervalMs,
      leaseSeconds: this.#leaseMs / 1000,
      stallMs: this.#stallMs,
      timeoutMs: Math.max(200, this.#leaseMs / 3),
      flags: this.#flags.buffer as SharedArrayBuffer,
      leases: this.#shared.buffer,
    };
    const thread = startThread(new URL('./heartbeat-thread', import.meta.url), {
      workerData: { ...options, inbox: port2 },
      transferList: [port2],
    });
    this.#inbox = port1;
    this.#thread = thread;
    port1.on('message', (message: FromThread) => this.#handle(message));
    port1.unref();
    thread.on('error', (error) => this.#logger.error({ err: error }, 'heartbeat thread failed'));
    thread.on('exit', () => this.#exited(thread));
    for (const [schema, known] of this.#tenants) this.#post({ kind: 'tenant', schema, ...known });
  }

  #exited(thread: Worker): void {
    if (this.#stopping || this.#thread !== thread) return;
    this.#logger.error('heartbeat thread exited; starting another');
    this.#thread = undefined;
    setTimeout(() => {
      if (!this.#stopping) this.#spawn();
    }, 100);
  }

  #post(message: ToThread): void {
    this.#thread?.postMessage(message);
  }

  #tick(): void {
    Atomics.add(this.#flags, flags.pulse, 1);
    this.check();
    if (this.#leases.size > 0) return;
    clearInterval(this.#timer);
    this.#timer = undefined;
  }

  /** Drops expired leases, so that a process that was suspended does not act on them. */
  check(): void {
    // After a blocked event loop a renewal may still wait in the inbox.
    this.#receive();
    const now = monotonicMs();
    for (const [leaseId, entry] of this.#leases) {
      if (entry.trustedUntilMs > now) continue;
      this.#leases.delete(leaseId);
      this.#shared.remove(leaseId);
      this.#logger.warn({ leaseId, jobs: entry.lease.jobIds.length }, 'lease expired without a renewal');
      this.#listeners.lost?.(entry.lease.jobIds.length);
      for (const jobId of [...entry.lease.jobIds]) entry.lease.onLost(jobId);
    }
  }

  #receive(): void {
    if (this.#inbox === undefined) return;
    for (;;) {
      const received = receiveMessageOnPort(this.#inbox);
      if (received === undefined) return;
      this.#handle(received.message as FromThread);
    }
  }

  #handle(message: FromThread): void {
    switch (message.kind) {
      case 'renewed':
        this.renewed(message);
        break;
      case 'failed':
        this.#listeners.failed?.();
        this.#renewalFailed(message);
        // The tenant may be on another node by now.
        this.#numberOf(message.schema as Schema);
        break;
      case 'stalled':
        this.#logger.error('event loop was blocked for too long; leases were not renewed');
        break;
    }
  }

  /** Logs one line when renewals start to fail, and one when they succeed again. */
  #renewalFailed({ schema, message }: Extract<FromThread, { kind: 'failed' }>): void {
    this.#failures += 1;
    if (this.#failures === 1) this.#logger.warn({ schema, reason: message }, 'lease renewal failed; retrying');
  }

  /** `sentAt` is the monotonic time before the renewal was sent. */
  renewed({ schema, leaseIds, live, sentAt }: Renewal): void {
    this.#listeners.renewed?.(schema, leaseIds.length);
    this.#numberOf(schema as Schema);
    if (this.#failures > 0) this.#logger.info({ failures: this.#failures }, 'leases are renewed again');
    this.#failures = 0;
    const byId = new Map(live.map((job) => [job.jobId, job]));
    for (const leaseId of leaseIds) {
      const entry = this.#leases.get(leaseId);
      if (entry === undefined) continue;
      entry.trustedUntilMs = Math.max(entry.trustedUntilMs, this.#trust(sentAt));
      for (const jobId of [...entry.lease.jobIds]) {
        const job = byId.get(jobId);
        // Another lease of this daemon may own the job by now.
        if (job?.leaseId !== leaseId) entry.lease.onLost(jobId);
        else if (job.cancelIntent !== null) {
          this.#listeners.stopRequested?.(job);
          entry.lease.onStopRequested(job);
        }
      }
    }
  }
}
