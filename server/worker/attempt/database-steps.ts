// The durable calls of an attempt in its tenant's schema. Every write is fenced; a refused one ends the attempt with
// `leaseLost`.
import {
  loadSteps,
  type OpenWait,
  openSleep,
  type StepCall,
  type StoredStep,
  type WaitEnd,
} from '../../jobs/attempt/steps.ts';
import { isHeld } from '../../jobs/claim/lease.ts';
import type { Waiting } from '../../jobs/model/waiting.ts';
import type { HandlerRun, StepStore } from './handler-run.ts';
import { JobStopped } from './stop-reason.ts';

export class DatabaseSteps implements StepStore {
  readonly #run: HandlerRun;

  constructor(run: HandlerRun) {
    this.#run = run;
  }

  load(): Promise<StoredStep[]> {
    const { db, tenant } = this.#run;
    return this.#fenced(() => loadSteps(db, tenant.schema, this.#held));
  }

  openSleep(call: StepCall, end: WaitEnd): Promise<OpenWait> {
    const { db, tenant } = this.#run;
    return this.#fenced(() => openSleep(db, tenant.schema, this.#held, call, end));
  }

  async suspend(waiting: Waiting, leftMs: number): Promise<void> {
    this.#run.stop({ kind: 'suspended', waiting, leftMs });
  }

  async #fenced<T>(write: () => Promise<T | undefined>): Promise<T> {
    const written = (await write()) ?? ((await this.#isHeld()) ? await write() : undefined);
    if (written !== undefined) return written;
    this.#run.stop({ kind: 'leaseLost' });
    throw new JobStopped({ kind: 'leaseLost' });
  }

  /** While a tenant moves between nodes a fenced write can miss a row that exists: check, and write again. */
  #isHeld(): Promise<boolean> {
    return isHeld(this.#run.db, this.#run.tenant.schema, this.#held);
  }

  get #held() {
    return { jobId: this.#run.job.id, leaseId: this.#run.leaseId };
  }
}
