// What a live stream may begin with: the jobs of its selection as they are at one moment, and the
// database's snapshot of that moment, behind which the stream goes on.
import type { Database, Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import type { StreamFilter } from '../../events/stream/stream-batch.ts';
import type { Job } from '../../jobs/model/job.ts';
import { isTerminal, statuses } from '../../jobs/model/states.ts';
import { findJob } from '../../jobs/read/find-job.ts';
import { listJobs } from '../../jobs/read/list-jobs.ts';
import { jobSummaryToApi } from './job-schema.ts';

// More than a page shows; whoever wants all of a large tenant's jobs reads the lists.
const maxJobs = 500;

export async function readSelection(db: Database, schema: Schema, selection: StreamFilter) {
  return db.transaction(async (tx) => {
    await tx.query('set transaction isolation level repeatable read, read only');
    const [row] = await tx.query<{ snapshot: string }>('select pg_current_snapshot()::text as snapshot');
    const { jobs, complete } = await readJobs(tx, schema, selection);
    return { snapshot: row?.snapshot ?? '', content: { jobs: jobs.map(jobSummaryToApi), complete } };
  });
}

/** One job whatever its status; otherwise all that are not finished. */
async function readJobs(
  tx: Queryable,
  schema: Schema,
  { jobId, targetId }: StreamFilter,
): Promise<{ jobs: Job[]; complete: boolean }> {
  if (jobId !== undefined) {
    const job = await findJob(tx, schema, jobId);
    const wanted = job && (targetId === undefined || job.targetId === targetId);
    return { jobs: wanted ? [job] : [], complete: true };
  }
  const unfinished = statuses.filter((status) => !isTerminal(status));
  const page = await listJobs(tx, schema, { statuses: unfinished, targetId }, { limit: maxJobs });
  return { jobs: page.jobs, complete: page.next === undefined };
}
