// Bulk actions by filter: counting the jobs one would change, creating one, reading its progress.
// run-bulk-operations.ts runs them.
import { desc, eq, lt } from 'drizzle-orm';
import { v7 as uuidv7 } from 'uuid';
import type { Queryable } from '../../database/database.ts';
import { build, columnList, columnsOf, defineRead, type RowOf } from '../../database/drizzle.ts';
import type { Schema } from '../../database/identifiers.ts';
import { operations } from '../../database/tables/tenant.ts';
import type { Tenant } from '../../tenants/tenant.ts';
import { type Status, statuses, transitions } from '../model/states.ts';
import { areUnfinished, conditionsOf, type JobFilter, unfinishedIds } from '../read/filter.ts';

/** `waiting`: the other jobs wait for the outcome of the first. */
export type CanaryState = 'waiting' | 'succeeded' | 'failed';

export const operationActions = ['cancel', 'resume', 'retry'] as const;
export type OperationAction = (typeof operationActions)[number];

const { cursor: _, lockedUntil: __, ...shownColumns } = columnsOf(operations);

/** What a read of operations selects: all but what the daemon that runs one keeps for itself. */
const operationSelection = shownColumns;

/** `matched`: the jobs that matched when it began. */
export interface Operation extends Omit<RowOf<typeof operations>, 'cursor' | 'lockedUntil'> {
  action: OperationAction;
  filter: JobFilter;
  status: 'running' | 'finished' | 'failed';
  canary: CanaryState | null;
}

/** Of events that an operation causes. */
export function operationActor(operation: Pick<Operation, 'id'>): string {
  return `operation:${operation.id}`;
}

const byId = defineRead<{ id: string }>()(({ id }) =>
  build.select(operationSelection).from(operations).where(eq(operations.id, id)),
);
const pageBefore = defineRead<{ before: string; limit: number }>()(({ before, limit }) =>
  build
    .select(operationSelection)
    .from(operations)
    .where(lt(operations.id, before))
    .orderBy(desc(operations.id))
    .limit(limit),
);

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

/** By status: the jobs that match the filter and that the action leaves alone. Of the history, only jobs named by id. */
export async function countNotEligible(
  db: Queryable,
  schema: Schema,
  action: OperationAction,
  filter: JobFilter,
): Promise<{ status: Status; count: number }[]> {
  const able = eligible(action, { ...filter, statuses: undefined }).statuses ?? [];
  const wanted = filter.statuses ?? statuses;
  const others = wanted.filter(
    (status) => !able.includes(status) && (filter.ids !== undefined || isUnfinished(status)),
  );
  if (others.length === 0) return [];
  const { text, values } = conditionsOf({ ...filter, statuses: others }, 2);
  const source =
    filter.ids === undefined
      ? `(select distinct id from (${unfinishedIds(schema, others, '$1')}) a)`
      : '(select unnest($2::uuid[]) as id limit $1)';
  return db.query(
    `select j.status, count(*)::int as count from ${source} l join ${schema}.jobs j on j.id = l.id where true${text}
      group by j.status order by count(*) desc, j.status`,
    [all, ...values],
  );
}

function isUnfinished(status: Status): boolean {
  return areUnfinished([status]);
}

export interface NewOperation {
  action: OperationAction;
  filter: JobFilter;
  author: string | undefined;
  reason: string | undefined;
  /** Resume one job first, and the others only if it succeeds. */
  canary?: boolean | undefined;
}

export async function createOperation(db: Queryable, schema: Schema, given: NewOperation): Promise<Operation> {
  const matched = await countJobs(db, schema, eligible(given.action, given.filter));
  const [operation] = await db.query<Operation>(
    `insert into ${schema}.operations (id, action, filter, author, reason, matched, canary)
     values ($1, $2, $3, $4, $5, $6, $7) returning ${columnList(operations, operationSelection)}`,
    [
      uuidv7(),
      given.action,
      JSON.stringify(given.filter),
      given.author ?? null,
      given.reason ?? null,
      matched,
      given.canary ? 'waiting' : null,
    ],
  );
  return operation as Operation;
}

export async function findOperation(db: Queryable, schema: Schema, id: string): Promise<Operation | undefined> {
  const [operation] = await byId(db, schema, { id });
  return operation as Operation | undefined;
}

/** Newest first. */
export async function listOperations(
  db: Queryable,
  schema: Schema,
  page: { before: string; limit: number },
): Promise<Operation[]> {
  return (await pageBefore(db, schema, page)) as Operation[];
}

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
