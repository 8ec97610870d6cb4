// Resumes what shutdowns have paused, tenant by tenant: one bulk operation for each that has such jobs.
import type { Queryable } from '../../database/database.ts';
import type { Tenant } from '../../tenants/tenant.ts';
import { countJobs, createOperation, eligible } from './bulk-operations.ts';

const action = 'resume';
const filter = { holdKind: 'drain' } as const;

/** How many jobs the operations are about. */
export async function resumeDrainedJobs(
  db: Queryable,
  tenants: readonly Pick<Tenant, 'schema'>[],
  workerId: string,
): Promise<number> {
  let jobs = 0;
  for (const { schema } of tenants) {
    const count = await countJobs(db, schema, eligible(action, filter));
    if (count === 0) continue;
    await createOperation(db, schema, {
      action,
      filter,
      author: `worker:${workerId}`,
      reason: 'started again after a drain',
    });
    jobs += count;
  }
  return jobs;
}
