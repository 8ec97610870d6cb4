// A tenant's claims: what is known of the jobs that wait, and the claims that are under way. One at a
// time, or a second beside it while more is known to wait: the database then never rests while the
// answer of the first is made into running jobs.
import type { Claimed, NamedClaim } from '../../jobs/claim/claim.ts';
import type { LostClaims } from './lost-claims.ts';
import { RetryTimer } from './retry-timer.ts';

export interface ClaimerOptions {
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

const maxInFlight = 2;

export class Claimer {
  readonly #options: ClaimerOptions;
  readonly #inFlight = new Set<Promise<void>>();
  readonly #retry: RetryTimer;
  /** Something happened since the last claim was sent, or one took all that it asked for. */
  #mayHaveWork = false;
  /** How the last claim came out; before the first, nobody knows. */
  #last: 'unknown' | 'full' | 'short' = 'unknown';
  #wakes = 0;
  #requested = 0;
  #stopped = false;

  constructor(options: ClaimerOptions) {
    this.#options = options;
    this.#retry = new RetryTimer(() => {
      this.wake();
      options.onDue();
    });
  }

  get mayHaveWork(): boolean {
    return this.#mayHaveWork;
  }

  /** No job is known to wait for a slot. */
  get isDrained(): boolean {
    return !this.#mayHaveWork && this.#last === 'short';
  }

  get busy(): boolean {
    return this.#inFlight.size > 0;
  }

  /** For how many jobs the claims under way ask. */
  get requested(): number {
    return this.#requested;
  }

  /** There may be something to claim. */
  wake(): void {
    this.#mayHaveWork = true;
    this.#wakes += 1;
  }

  /** Sends what may be sent now. */
  send(): void {
    while (this.#mayHaveWork && !this.#stopped && this.#inFlight.size < (this.#last === 'full' ? maxInFlight : 1)) {
      const request = this.#options.next();
      if (request === undefined) {
        // With the answer of one under way it is looked again.
        if (this.busy) return;
        this.#last = 'full';
        this.#options.onNoRoom();
        return;
      }
      // Of a line that is longer than a claim, one claim does not take all.
      this.#mayHaveWork = this.#last === 'full';
      const sent = this.#claim(request);
      this.#inFlight.add(sent);
      void sent.then(() => {
        this.#inFlight.delete(sent);
        if (!this.#retry.waiting) this.send();
      });
    }
  }

  /** Sends no more; resolves when all are answered. */
  async stop(): Promise<void> {
    this.#stopped = true;
    this.#retry.stop();
    await Promise.all(this.#inFlight);
  }

  async #claim(request: NamedClaim): Promise<void> {
    const { lost, send, onClaimed, onFailed } = this.#options;
    const wakes = this.#wakes;
    this.#requested += request.limit;
    let sentAt: bigint;
    let claimed: Claimed;
    try {
      await lost.release();
      sentAt = process.hrtime.bigint();
      claimed = await send(request);
      this.#retry.reset();
    } catch (error) {
      lost.add(request.leaseId, error);
      this.#mayHaveWork = false;
      onFailed(error, this.#retry.begin());
      return;
    } finally {
      this.#requested -= request.limit;
    }
    const full = claimed.jobs.length >= request.limit || claimed.isCut === true;
    // To another that was sent before this answer and comes out short, it is news that there is more.
    if (full) this.#wakes += 1;
    this.#last = full ? 'full' : 'short';
    this.#mayHaveWork = full || wakes !== this.#wakes;
    onClaimed(claimed, sentAt);
  }
}
