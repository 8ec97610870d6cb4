// Sends the claims of one tenant and remembers whether there may be work. One claim is in flight at a time. While more
// work is known to wait, a second one keeps the database busy during the start of the first one's jobs.

import type { Database } from '../../database/database.ts';
import { isConnectionError } from '../../database/sql-errors.ts';
import { type Claimed, claimJobs, type NamedClaim } from '../../jobs/claim/claim.ts';
import { releaseClaim } from '../../jobs/claim/release-claim.ts';
import { newId } from '../../kernel/ids.ts';
import { claimWithinCapacity } from '../../scheduler/claim-within-capacity.ts';
import type { Tenant } from '../../tenants/tenant.ts';
import { hasCapacities } from '../../tenants/tenant-store.ts';

export interface ClaimerContext {
  db: Database;
  config: { workerId: string; leaseSeconds: number };
  handlers: { types(): readonly string[] };
  /** Sends a claim; tests delay it or cut the connection. */
  sendClaim?: SendClaim;
}

export type SendClaim = (tenant: Tenant, request: NamedClaim) => Promise<Claimed>;

export type ClaimAnswer =
  /**
   * `sentAt` is the monotonic time before the claim was sent. The lease is not older than that. `againInMs` is set if
   * the claim skipped locked jobs: when to claim again.
   */
  | { kind: 'claimed'; claimed: Claimed; sentAt: bigint; againInMs: number | undefined }
  | { kind: 'failed'; error: unknown; retryInMs: number };

const maxInFlight = 2;
const firstRetryMs = 200;
const maxRetryMs = 10_000;
// The pause after a claim that found nothing, before a wake-up by another daemon leads to the next claim.
const firstPeerPauseMs = 5;
const maxPeerPauseMs = 100;
// The pause before the next claim after one that skipped locked jobs. A lane may stay locked for long.
const firstSkipPauseMs = 5;
const maxSkipPauseMs = 1000;

export class Claimer {
  readonly #context: ClaimerContext;
  #inFlight = 0;
  #requested = 0;
  /** A wake-up came after the last claim was sent, or the last claim was full. */
  #mayHaveWork = false;
  /** The result of the last claim; unknown before the first. */
  #last: 'unknown' | 'full' | 'short' = 'unknown';
  #wakeUps = 0;
  #failures = 0;
  /** The number of claims without jobs since the last one with jobs. */
  #emptyClaims = 0;
  #lastEmptyAt = Number.NEGATIVE_INFINITY;
  /** The number of claims that skipped locked jobs since the last one that skipped none. */
  #skips = 0;
  /** Claims whose answers were lost. They may have taken jobs, whose leases are not renewed. */
  #lostLeaseIds: string[] = [];

  constructor(context: ClaimerContext) {
    this.#context = context;
  }

  get mayHaveWork(): boolean {
    return this.#mayHaveWork;
  }

  /** No job is known to wait for a slot. */
  get isDrained(): boolean {
    return !this.#mayHaveWork && this.#last === 'short';
  }

  get isBusy(): boolean {
    return this.#inFlight > 0;
  }

  /** The number of jobs that the claims in flight ask for. */
  get requested(): number {
    return this.#requested;
  }

  /** Another claim may be sent now. */
  get maySend(): boolean {
    return this.#mayHaveWork && this.#inFlight < (this.#last === 'full' ? maxInFlight : 1);
  }

  /** There may be something to claim. */
  wake(): void {
    this.#mayHaveWork = true;
    this.#wakeUps += 1;
  }

  /** Milliseconds until a wake-up by another daemon may lead to a claim. */
  peerWakeUpInMs(): number {
    const pauseMs = Math.min(firstPeerPauseMs * 2 ** this.#emptyClaims, maxPeerPauseMs) * (0.5 + Math.random() / 2);
    return this.#emptyClaims === 0 ? 0 : this.#lastEmptyAt + pauseMs - performance.now();
  }

  /** Work waits, and there is no room for it. */
  setFull(): void {
    this.#last = 'full';
  }

  request(limit: number): NamedClaim {
    const { config, handlers } = this.#context;
    const { workerId, leaseSeconds } = config;
    return { leaseId: newId(), owner: workerId, limit, leaseSeconds, types: handlers.types() };
  }

  /** Claims up to `room` jobs. Never rejects. */
  async next(tenant: Tenant, room: number): Promise<ClaimAnswer> {
    const request = this.request(room);
    const wakeUps = this.#wakeUps;
    // While claims come back full, one more claim cannot take everything that waits.
    this.#mayHaveWork = this.#last === 'full';
    this.#inFlight += 1;
    this.#requested += room;
    try {
      await this.releaseLost(tenant);
      const sentAt = process.hrtime.bigint();
      const claimed = await this.#send(tenant, request);
      this.#onAnswer(claimed, room, wakeUps);
      return { kind: 'claimed', claimed, sentAt, againInMs: this.#skipPauseMs(claimed) };
    } catch (error) {
      // Only after a lost connection is it unknown whether the claim was committed.
      if (isConnectionError(error)) this.addLost(request.leaseId);
      this.#mayHaveWork = false;
      return { kind: 'failed', error, retryInMs: this.#backOff() };
    } finally {
      this.#inFlight -= 1;
      this.#requested -= room;
    }
  }

  /** It is unknown whether the claim took jobs. */
  addLost(leaseId: string): void {
    this.#lostLeaseIds.push(leaseId);
  }

  /** Requeues the jobs of lost claims before their leases expire and cost an attempt. Returns the number of jobs. */
  async releaseLost({ schema }: Tenant): Promise<number> {
    const { db, config } = this.#context;
    let jobs = 0;
    for (const leaseId of [...this.#lostLeaseIds]) {
      jobs += await releaseClaim(db, schema, { leaseId, kind: 'local', actor: `worker:${config.workerId}` });
      this.#lostLeaseIds = this.#lostLeaseIds.filter((id) => id !== leaseId);
    }
    return jobs;
  }

  #send(tenant: Tenant, request: NamedClaim): Promise<Claimed> {
    const { db, sendClaim } = this.#context;
    const { schema, settings } = tenant;
    if (sendClaim !== undefined) return sendClaim(tenant, request);
    return hasCapacities(settings) ? claimWithinCapacity(db, schema, request) : claimJobs(db, schema, request);
  }

  #onAnswer(claimed: Claimed, room: number, wakeUps: number): void {
    const isFull = claimed.jobs.length >= room || claimed.isCut === true;
    // A claim that was sent before this answer may come back short although more work waits, so this counts as a
    // wake-up.
    if (isFull) this.#wakeUps += 1;
    this.#last = isFull ? 'full' : 'short';
    this.#mayHaveWork = isFull || wakeUps !== this.#wakeUps;
    this.#failures = 0;
    this.#emptyClaims = claimed.jobs.length === 0 ? this.#emptyClaims + 1 : 0;
    if (claimed.jobs.length === 0) this.#lastEmptyAt = performance.now();
  }

  #skipPauseMs({ hasSkipped = false }: Claimed): number | undefined {
    if (!hasSkipped) this.#skips = 0;
    if (!hasSkipped) return undefined;
    this.#skips += 1;
    return Math.min(firstSkipPauseMs * 2 ** (this.#skips - 1), maxSkipPauseMs);
  }

  #backOff(): number {
    const delayMs = Math.min(firstRetryMs * 2 ** this.#failures, maxRetryMs) * (0.5 + Math.random() / 2);
    this.#failures += 1;
    return Math.round(delayMs);
  }
}
