// A tenant's claims: what is known of the jobs that wait, and the claims that are under way. One at a
// time, or a second beside it while more is known to wait: the database then never rests while the
// answer of the first is made into running jobs.
import type { Claimed, NamedClaim } from '../../jobs/claim/claim.ts';
import type { LostClaims } from './lost-claims.ts';
import { RetryTimer } from './retry-timer.ts';

export interface ClaimsOptions {
  lost: LostClaims;
  /** The next claim; undefined: there is no room for one now. */
  next(): NamedClaim | undefined;
  send(request: NamedClaim): Promise<Claimed>;
  /** `sentAt` is the monotonic time before it was sent. */
  onClaimed(claimed: Claimed, sentAt: bigint): void;
  onFailed(error: unknown, retryInMs: number): void;
  /** Something waits, and there is no room for it. */
  onNoRoom(): void;
  /** It is time to look again. */
  onDue(): void;
}

const mostAtOnce = 2;

export class Claims {
  readonly #options: ClaimsOptions;
  readonly #underWay = new Set<Promise<void>>();
  readonly #retry: RetryTimer;
  /** Something happened since the last claim was sent, or one took all that it asked for. */
  #mayBeMore = false;
  /** How the last claim came out; before the first, nobody knows. */
  #last: 'unknown' | 'full' | 'short' = 'unknown';
  #wakes = 0;
  #asked = 0;
  #stopped = false;

  constructor(options: ClaimsOptions) {
    this.#options = options;
    this.#retry = new RetryTimer(() => {
      this.wake();
      options.onDue();
    });
  }

  get mayBeMore(): boolean {
    return this.#mayBeMore;
  }

  /** No job is known to wait for a slot. */
  get nothingWaits(): boolean {
    return !this.#mayBeMore && this.#last === 'short';
  }

  get busy(): boolean {
    return this.#underWay.size > 0;
  }

  /** For how many jobs the claims under way ask. */
  get asked(): number {
    return this.#asked;
  }

  /** There may be something to claim. */
  wake(): void {
    this.#mayBeMore = true;
    this.#wakes += 1;
  }

  /** Sends what may be sent now. */
  send(): void {
    while (this.#mayBeMore && !this.#stopped && this.#underWay.size < (this.#last === 'full' ? mostAtOnce : 1)) {
      const request = this.#options.next();
      if (request === undefined) {
        // With the answer of one under way it is looked again.
        if (this.busy) return;
        this.#last = 'full';
        this.#options.onNoRoom();
        return;
      }
      // Of a line that is longer than a claim, one claim does not take all.
      this.#mayBeMore = this.#last === 'full';
      const sent = this.#claim(request);
      this.#underWay.add(sent);
      void sent.then(() => {
        this.#underWay.delete(sent);
        if (!this.#retry.waiting) this.send();
      });
    }
  }

  /** Sends no more; resolves when all are answered. */
  async stop(): Promise<void> {
    this.#stopped = true;
    this.#retry.stop();
    await Promise.all(this.#underWay);
  }

  async #claim(request: NamedClaim): Promise<void> {
    const { lost, send, onClaimed, onFailed } = this.#options;
    const wakes = this.#wakes;
    this.#asked += request.limit;
    let sentAt: bigint;
    let claimed: Claimed;
    try {
      await lost.disown();
      sentAt = process.hrtime.bigint();
      claimed = await send(request);
      this.#retry.reset();
    } catch (error) {
      lost.add(request.leaseId, error);
      this.#mayBeMore = false;
      onFailed(error, this.#retry.begin());
      return;
    } finally {
      this.#asked -= request.limit;
    }
    const full = claimed.jobs.length >= request.limit || claimed.isCut === true;
    // To another that was sent before this answer and comes out short, it is news that there is more.
    if (full) this.#wakes += 1;
    this.#last = full ? 'full' : 'short';
    this.#mayBeMore = full || wakes !== this.#wakes;
    onClaimed(claimed, sentAt);
  }
}
