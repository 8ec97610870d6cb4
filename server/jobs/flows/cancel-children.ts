// Cancels the unfinished children of canceled parents, in batches. The edges store which children these are, so another
// daemon continues if this one dies.
import type { Database } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { statement, tenant } from '../../database/sql.ts';
import { retryConflicts } from '../../database/sql-errors.ts';
import { Problem } from '../../kernel/errors.ts';
import { cancelIdle, cancelJob } from '../actions/pause-and-cancel.ts';
import type { Job } from '../model/job.ts';
import { allows } from '../model/states.ts';

const batch = 200;

type Child = Pick<Job, 'id' | 'targetId' | 'status'> & { parentId: string };

const findStatement = statement(`
  select j.id, j.target_id as "targetId", j.status, d.job_id as "parentId"
    from (
      select job_id, after_id
        from ${tenant}.dependencies
       where state = 'canceling'
       limit :limit
    ) d
    left join ${tenant}.jobs j on j.id = d.after_id`);

const doneStatement = statement(`
  update ${tenant}.dependencies d
     set state = 'canceled'
   where d.after_id = any(:ids::uuid[])
     and d.state = 'canceling'`);

/** True if there may be more. */
export async function cancelChildren(db: Database, schema: Schema, actor: string): Promise<boolean> {
  const found = await findStatement.query<Child>(db, schema, { limit: batch });
  if (found.length === 0) return false;
  const idle = found.filter(({ status }) => allows('cancel', status));
  const request = { actor, data: { reason: parentCanceled } };
  const canceled = await retryConflicts(() => db.transaction((tx) => cancelIdle(tx, schema, idle, request)));
  for (const child of found) {
    // A running child is asked to stop; a child that was waiting may have started.
    if (!canceled.includes(child.id)) await cancelOne(db, schema, child, actor);
  }
  await doneStatement.query(db, schema, { ids: found.map(({ id }) => id) });
  return found.length === batch;
}

const parentCanceled = 'its parent was canceled';

async function cancelOne(db: Database, schema: Schema, { id }: Child, actor: string): Promise<void> {
  try {
    await cancelJob(db, schema, { jobId: id, actor, reason: parentCanceled });
  } catch (error) {
    // The job has ended or was deleted.
    if (!(error instanceof Problem) || error.httpStatus >= 500) throw error;
  }
}
