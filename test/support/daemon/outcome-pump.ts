// Writes outcomes as a tenant's loop does: those of one turn share a batch, queue by queue.
import type { Claimed, NamedClaim } from '../../../server/jobs/claim/claim.ts';
import type { FinishedAttempt } from '../../../server/jobs/finish/outcome.ts';
import { type OutcomeQueue, OutcomeQueues } from '../../../server/worker/loop/outcome-queues.ts';
import { OutcomeWriter, type OutcomeWriterOptions } from '../../../server/worker/loop/outcomes.ts';

export interface PumpOptions extends OutcomeWriterOptions {
  /** Called before each batch is sent. */
  nextClaim?(): NamedClaim | undefined;
  onClaimed?(claimed: Claimed): void;
  onFinished(item: FinishedAttempt, isAccepted: boolean): void;
}

export class OutcomePump {
  readonly #options: PumpOptions;
  readonly #queues = new OutcomeQueues<FinishedAttempt>();
  readonly #writer: OutcomeWriter<FinishedAttempt>;
  readonly #leases = new Map<string, object>();
  #scheduled = false;

  constructor(options: PumpOptions) {
    this.#options = options;
    this.#writer = new OutcomeWriter(options);
  }

  get pending(): number {
    return this.#queues.pending;
  }

  add(item: FinishedAttempt, isLast: boolean): void {
    const lease = this.#leases.get(item.leaseId) ?? {};
    this.#leases.set(item.leaseId, lease);
    this.#queues.add(item, lease, isLast);
    if (this.#scheduled) return;
    this.#scheduled = true;
    setImmediate(() => {
      this.#scheduled = false;
      for (const queue of this.#queues.takeUnwritten()) void this.#write(queue);
    });
  }

  idle(): Promise<void> {
    return this.#queues.idle();
  }

  async #write(queue: OutcomeQueue<FinishedAttempt>): Promise<void> {
    const { nextClaim, onClaimed, onFinished } = this.#options;
    for (let batch = this.#queues.next(queue); batch !== undefined; batch = this.#queues.next(queue)) {
      const ofLanes = batch.items.some((item) => item.targetId !== null);
      const sent = this.#writer.write(batch, ofLanes ? nextClaim?.() : undefined);
      const { accepted, refused, claimed } = await sent;
      for (const item of batch.items) {
        const isAccepted = accepted.some(({ jobId }) => jobId === item.jobId);
        if (isAccepted || refused.some(({ jobId }) => jobId === item.jobId)) onFinished(item, isAccepted);
      }
      if (claimed !== undefined) onClaimed?.(claimed.claimed);
    }
  }
}
