// The durable calls of an attempt in its tenant's schema. Every write is fenced; a refused one ends the attempt with
// `leaseLost`.
import {
  loadSteps,
  type OpenWait,
  openSleep,
  type StepCall,
  type StepEnd,
  type StoredStep,
  saveSteps,
  type WaitEnd,
} from '../../jobs/attempt/steps.ts';
import { isHeld } from '../../jobs/claim/lease.ts';
import type { Waiting } from '../../jobs/model/waiting.ts';
import { Fatal } from '../handlers/handler-errors.ts';
import type { HandlerRun, StepStore } from './handler-run.ts';
import { JobStopped } from './stop-reason.ts';
import { toStorable } from './storable.ts';

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

  async save(ends: readonly StepEnd[]): Promise<void> {
    const { db, tenant, job, config } = this.#run;
    for (const { name, result } of ends) {
      const stored = toStorable(result, config.resultLimitBytes, `The result of step ${name}`);
      if (!stored.ok) throw new Fatal(stored.error.message, { code: stored.error.code });
    }
    const actor = `worker:${job.leaseOwner ?? config.workerId}`;
    await this.#fenced(() => saveSteps(db, tenant.schema, this.#held, ends, actor));
  }

  async timeOut(name: string, seconds: number): Promise<void> {
    this.#run.stop({ kind: 'timedOut', afterSeconds: seconds, phase: name });
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
