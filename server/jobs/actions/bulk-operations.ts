// Bulk actions by filter: asking how many jobs one would touch, beginning one, reading its progress.
// What carries them out is in run-operations.ts.
import { v7 as uuidv7 } from 'uuid';
import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { type Status, statuses, transitions } from '../model/states.ts';
import { conditionsOf, type JobFilter, unfinishedIds } from '../read/filter.ts';

export const operationActions = ['cancel', 'resume', 'retry'] as const;
export type OperationAction = (typeof operationActions)[number];

export interface Operation {
  id: string;
  action: OperationAction;
  filter: JobFilter;
  status: 'running' | 'finished' | 'failed';
  author: string | null;
  reason: string | null;
  /** Jobs that matched when it began. */
  matched: number;
  done: number;
  failed: number;
  created_at: string;
  finished_at: string | null;
}

export const operationColumns =
  'id, action, filter, status, author, reason, matched, done, failed, created_at, finished_at';

/** The statuses that an action can do something about, within those that were asked for. */
export function eligible(action: OperationAction, filter: JobFilter): JobFilter {
  const able: readonly Status[] =
    action === 'cancel'
      ? statuses.filter((status) => status === 'RUNNING' || allowsCancel.includes(status))
      : action === 'resume'
        ? transitions.resume.from
        : ['ERROR'];
  return { ...filter, statuses: (filter.statuses ?? able).filter((status) => able.includes(status)) };
}

const allowsCancel: readonly Status[] = transitions.cancel.from;
// More than a tenant can hold; the parts of `liveIds` want a number.
const all = 2_147_483_647;

/** Exact, and without a walk through the history: only live jobs can be acted on. */
export async function countJobs(db: Queryable, schema: Schema, filter: JobFilter): Promise<number> {
  if (filter.statuses === undefined || filter.statuses.length === 0) return 0;
  const { text, values } = conditionsOf(filter, 2);
  const [row] = await db.query<{ count: number }>(
    `select count(*)::int as count from (select distinct id from (${unfinishedIds(schema, filter.statuses, '$1')}) a) l
       join ${schema}.jobs j on j.id = l.id where true${text}`,
    [all, ...values],
  );
  return row?.count ?? 0;
}

export interface NewOperation {
  action: OperationAction;
  filter: JobFilter;
  author: string | undefined;
  reason: string | undefined;
}

export async function createOperation(db: Queryable, schema: Schema, given: NewOperation): Promise<Operation> {
  const matched = await countJobs(db, schema, eligible(given.action, given.filter));
  const [operation] = await db.query<Operation>(
    `insert into ${schema}.operations (id, action, filter, author, reason, matched)
     values ($1, $2, $3, $4, $5, $6) returning ${operationColumns}`,
    [uuidv7(), given.action, JSON.stringify(given.filter), given.author ?? null, given.reason ?? null, matched],
  );
  return operation as Operation;
}

export async function findOperation(db: Queryable, schema: Schema, id: string): Promise<Operation | undefined> {
  const [operation] = await db.query<Operation>(`select ${operationColumns} from ${schema}.operations where id = $1`, [
    id,
  ]);
  return operation;
}

/** Newest first. */
export async function listOperations(
  db: Queryable,
  schema: Schema,
  page: { before: string; limit: number },
): Promise<Operation[]> {
  return db.query<Operation>(
    `select ${operationColumns} from ${schema}.operations where id < $1 order by id desc limit $2`,
    [page.before, page.limit],
  );
}
