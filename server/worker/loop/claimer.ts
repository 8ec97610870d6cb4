// The claims of one tenant: whether there may be work, and the claims in flight. One at a time, or a second beside it
// while more is known to wait, so that the database works while the answer of the first is turned into attempts.

import type { Database } from '../../database/database.ts';
import { isConnectionError } from '../../database/sql-errors.ts';
import { type Claimed, claimJobs, type NamedClaim } from '../../jobs/claim/claim.ts';
import { releaseClaim } from '../../jobs/claim/release-claim.ts';
import { newId } from '../../kernel/ids.ts';
import { claimWithinCapacity } from '../../scheduler/claim-within-capacity.ts';
import type { Tenant } from '../../tenants/tenant.ts';
import { hasCapacities } from '../../tenants/tenant-store.ts';

export interface ClaimerOptions {
  db: Database;
  workerId: string;
  leaseSeconds: number;
  /** The job types that this daemon has handlers for. */
  types(): readonly string[];
  /** How a claim is sent; tests delay and cut it. */
  send?: SendClaim | undefined;
}

export type SendClaim = (tenant: Tenant, request: NamedClaim) => Promise<Claimed>;

export type ClaimAnswer =
  /** `sentAt` is the monotonic time before the claim was sent: the lease is at least as old as that. */
  { kind: 'claimed'; claimed: Claimed; sentAt: bigint } | { kind: 'failed'; error: unknown; retryInMs: number };

const maxInFlight = 2;
const firstRetryMs = 200;
const maxRetryMs = 10_000;
// The pause after a claim that found nothing, before a wake-up of another daemon leads to the next.
const firstPeerPauseMs = 5;
const maxPeerPauseMs = 100;

export class Claimer {
  readonly #options: ClaimerOptions;
  #inFlight = 0;
  #requested = 0;
  /** There was a wake-up since the last claim was sent, or the last claim was full. */
  #mayHaveWork = false;
  /** The result of the last claim; unknown before the first. */
  #last: 'unknown' | 'full' | 'short' = 'unknown';
  #wakeUps = 0;
  #failures = 0;
  /** Claims that found nothing, since the last one that did. */
  #emptyClaims = 0;
  #lastEmptyAt = Number.NEGATIVE_INFINITY;
  /** Claims whose answers were lost with their connection. They may have taken jobs, whose leases are not renewed. */
  #lostLeaseIds: string[] = [];

  constructor(options: ClaimerOptions) {
    this.#options = options;
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

  /** For how many jobs the claims in flight ask. */
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

  /** In how many milliseconds a wake-up of another daemon may lead to a claim. */
  peerWakeUpInMs(): number {
    const pauseMs = Math.min(firstPeerPauseMs * 2 ** this.#emptyClaims, maxPeerPauseMs) * (0.5 + Math.random() / 2);
    return this.#emptyClaims === 0 ? 0 : this.#lastEmptyAt + pauseMs - performance.now();
  }

  /** Work waits, and there is no room for it. */
  setFull(): void {
    this.#last = 'full';
  }

  request(limit: number): NamedClaim {
    const { workerId, leaseSeconds, types } = this.#options;
    return { leaseId: newId(), owner: workerId, limit, leaseSeconds, types: types() };
  }

  /** Claims up to `room` jobs. Never rejects. */
  async next(tenant: Tenant, room: number): Promise<ClaimAnswer> {
    const request = this.request(room);
    const wakeUps = this.#wakeUps;
    // While claims come back full, one more claim does not take everything that waits.
    this.#mayHaveWork = this.#last === 'full';
    this.#inFlight += 1;
    this.#requested += room;
    try {
      await this.releaseLost(tenant);
      const sentAt = process.hrtime.bigint();
      const claimed = await this.#send(tenant, request);
      this.#onAnswer(claimed, room, wakeUps);
      return { kind: 'claimed', claimed, sentAt };
    } catch (error) {
      this.addLost(request.leaseId, error);
      this.#mayHaveWork = false;
      return { kind: 'failed', error, retryInMs: this.#backOff() };
    } finally {
      this.#inFlight -= 1;
      this.#requested -= room;
    }
  }

  /** Only a lost connection leaves it open whether the claim was committed. */
  addLost(leaseId: string, error: unknown): void {
    if (isConnectionError(error)) this.#lostLeaseIds.push(leaseId);
  }

  /** Requeues what lost claims have taken, before their leases expire and cost an attempt. Returns how many jobs. */
  async releaseLost({ schema }: Tenant): Promise<number> {
    const { db, workerId } = this.#options;
    let jobs = 0;
    for (const leaseId of [...this.#lostLeaseIds]) {
      jobs += await releaseClaim(db, schema, { leaseId, kind: 'local', actor: `worker:${workerId}` });
      this.#lostLeaseIds = this.#lostLeaseIds.filter((id) => id !== leaseId);
    }
    return jobs;
  }

  #send(tenant: Tenant, request: NamedClaim): Promise<Claimed> {
    const { db, send } = this.#options;
    const { schema, settings } = tenant;
    if (send !== undefined) return send(tenant, request);
    return hasCapacities(settings) ? claimWithinCapacity(db, schema, request) : claimJobs(db, schema, request);
  }

  #onAnswer(claimed: Claimed, room: number, wakeUps: number): void {
    const isFull = claimed.jobs.length >= room || claimed.isCut === true;
    // A claim that was sent before this answer may come back short although there is more: that counts as a wake-up.
    if (isFull) this.#wakeUps += 1;
    this.#last = isFull ? 'full' : 'short';
    this.#mayHaveWork = isFull || wakeUps !== this.#wakeUps;
    this.#failures = 0;
    this.#emptyClaims = claimed.jobs.length === 0 ? this.#emptyClaims + 1 : 0;
    if (claimed.jobs.length === 0) this.#lastEmptyAt = performance.now();
  }

  #backOff(): number {
    const delayMs = Math.min(firstRetryMs * 2 ** this.#failures, maxRetryMs) * (0.5 + Math.random() / 2);
    this.#failures += 1;
    return Math.round(delayMs);
  }
}
