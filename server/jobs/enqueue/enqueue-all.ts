// How the routes put jobs in. The daemon brings an enqueuer that lets callers who wait at the same
// time share one commit; `submitDirectly` is the plain one.
import { type Database, retryConflicts } from '../../database/database.ts';
import { problem } from '../../kernel/errors.ts';
import type { Tenant } from '../../tenants/tenant.ts';
import { type Enqueued, enqueue, enqueueIn, type NewJob } from './enqueue.ts';

export type EnqueueJobs = (tenant: Tenant, newJobs: NewJob[], actor: string) => Promise<Enqueued[]>;

export function enqueueDirectly(db: Database): EnqueueJobs {
  return (tenant, newJobs, actor) => enqueue(db, tenant.schema, newJobs, actor);
}

/** Every job or none: a key that was used for another request undoes the whole batch. */
export async function enqueueAllOrNone(
  db: Database,
  tenant: Tenant,
  newJobs: NewJob[],
  actor: string,
): Promise<Enqueued[]> {
  return retryConflicts(() =>
    db.transaction(async (tx) => {
      const results = await enqueueIn(tx, tenant.schema, newJobs, actor);
      const index = results.findIndex((result) => result.kind === 'conflict');
      const conflict = results[index];
      if (conflict !== undefined) throw idempotencyConflict(conflict, `jobs[${index}]`);
      return results;
    }),
  );
}

export function idempotencyConflict(enqueued: Enqueued, field = 'client_request_id') {
  return problem(
    'IDEMPOTENCY_CONFLICT',
    'This idempotency key was used with another request; use a new key for a new request.',
    { field, job_id: enqueued.job.id },
  );
}
