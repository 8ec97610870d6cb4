// Enqueues jobs for the API and the test kit: callers share commits, and where workers have free slots the jobs start
// with the commit that inserts them.
import type { Database } from '../database/database.ts';
import type { CommitSignals } from '../jobs/commit-signals.ts';
import { type Enqueued, enqueue, type NewJob } from '../jobs/enqueue/enqueue.ts';
import { EnqueueGroupCommit } from '../jobs/enqueue/group-commit.ts';
import { notifyReceived } from '../jobs/received/receive-event.ts';
import type { PerTenantTasks } from '../maintenance/create-per-tenant-tasks.ts';
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

// What follows from an event from outside once it is committed: it is delivered here, or by the daemons that run.

/** An instance that was not started runs no tasks. */
export function onEventReceived(
  { db, signals, lifecycle, logger }: DaemonContext,
  tasks: Pick<PerTenantTasks, 'received'>,
  tenant: Tenant,
): void {
  signals.eventsWritten(tenant);
  if (lifecycle.state === 'running') {
    tasks.received.runNow(tenant.slug);
    return;
  }
  void notifyReceived(db, tenant).catch((error: unknown) =>
    logger.debug({ err: error, tenant: tenant.slug }, 'received event was not announced; a poll finds it'),
  );
}
