// Enqueues jobs for the API and the test kit: callers share commits, and where workers have free slots the jobs start
// with the commit that inserts them.
import type { Database } from '../database/database.ts';
import type { CommitSignals } from '../jobs/commit-signals.ts';
import { type Enqueued, enqueue, type NewJob } from '../jobs/enqueue/enqueue.ts';
import { EnqueueGroupCommit } from '../jobs/enqueue/group-commit.ts';
import type { Tenant } from '../tenants/tenant.ts';
import type { WorkerPool } from '../worker/loop/worker-pool.ts';
import type { DaemonContext } from './daemon-context.ts';

export class Enqueuer {
  readonly #db: Database;
  readonly #group: EnqueueGroupCommit;
  readonly #workers: WorkerPool;
  readonly #signals: CommitSignals;

  constructor({ db, signals }: DaemonContext, workers: WorkerPool) {
    this.#db = db;
    this.#group = new EnqueueGroupCommit(db);
    this.#workers = workers;
    this.#signals = signals;
  }

  async enqueue(tenant: Tenant, jobs: NewJob[], actor: string): Promise<Enqueued[]> {
    if (jobs.some((job) => job.unique !== undefined)) return this.#enqueueUnique(tenant, jobs, actor);
    const reserve = (given: readonly NewJob[]) => this.#workers.reserve(tenant.slug, given);
    const enqueued = await this.#group.enqueue(tenant.schema, jobs, actor, reserve);
    this.#signals.eventsWritten(tenant);
    const allStarted = enqueued.every((one) => one.kind === 'created' && one.started);
    if (allStarted) return enqueued;
    // If this daemon can claim them, no other is woken.
    const isRoomHere = this.#workers.hasRoomFor(tenant.slug, jobs);
    this.#signals.workAvailable(tenant, { enqueued, reach: isRoomHere ? 'daemon' : 'all' });
    return enqueued;
  }

  /** Alone: a key may be locked for long by a transaction of another program. */
  async #enqueueUnique(tenant: Tenant, jobs: NewJob[], actor: string): Promise<Enqueued[]> {
    const enqueued = await enqueue(this.#db, tenant.schema, jobs, actor);
    this.#signals.eventsWritten(tenant);
    this.#signals.workAvailable(tenant, { enqueued });
    return enqueued;
  }
}
