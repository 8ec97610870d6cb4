// Bulk actions by filter: counts the jobs that an action would change, creates the operation and reads its progress.
// run-bulk-operations.ts runs it.
import { desc, eq, lt, sql } from 'drizzle-orm';
import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { jsonBytes, withinBytes } from '../../database/reads/bounded-reads.ts';
import { build, columnList, columnsOf, defineRead, type RowOf } from '../../database/reads/drizzle.ts';
import { Statement, statement, tenant } from '../../database/sql.ts';
import { operations } from '../../database/tables/tenant.ts';
import { newId } from '../../kernel/ids.ts';
import { maxInt4 } from '../../kernel/limits.ts';
import type { Tenant } from '../../tenants/tenant.ts';
import { type Status, statuses, transitions } from '../model/states.ts';
import { areUnfinished, conditionsOf, type JobFilter, unfinishedIds } from '../read/filter.ts';

/** `waiting`: the other jobs wait for the outcome of the first. */
export type CanaryState = 'waiting' | 'succeeded' | 'failed';

export const operationActions = ['cancel', 'resume', 'retry'] as const;
export type OperationAction = (typeof operationActions)[number];

const { cursor: _, lockedUntil: __, ...shownColumns } = columnsOf(operations);

/** The columns that reads of operations select. The others belong to the daemon that runs the operation. */
const operationSelection = shownColumns;

/** `matched` is the number of jobs that matched when the operation began. */
export interface Operation extends Omit<RowOf<typeof operations>, 'cursor' | 'lockedUntil'> {
  action: OperationAction;
  filter: JobFilter;
  status: 'running' | 'finished' | 'failed';
  canary: CanaryState | null;
}

/** The actor of events that an operation causes. */
export function operationActor(operation: Pick<Operation, 'id'>): string {
  return `operation:${operation.id}`;
}

const byId = defineRead<{ id: string }>()(({ id }) =>
  build.select(operationSelection).from(operations).where(eq(operations.id, id)),
);
const pageBefore = defineRead<{ before: string; limit: number }>()(({ before, limit }) =>
  build
    .select({ ...operationSelection, bytes: sql.raw(jsonBytes('filter')).as('bytes') })
    .from(operations)
    .where(lt(operations.id, before))
    .orderBy(desc(operations.id))
    .limit(limit),
);

/** Returns the filter, narrowed to the statuses in which the action has an effect. */
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

/** The count is exact and does not scan the history, because the action changes only unfinished jobs. */
export async function countJobs(db: Queryable, schema: Schema, filter: JobFilter): Promise<number> {
  if (filter.statuses === undefined || filter.statuses.length === 0) return 0;
  const { text, parameters } = conditionsOf(filter);
  const count = new Statement(`
    select count(*)::int as count
      from ${distinctUnfinished(filter.statuses)} l
      join ${tenant}.jobs j on j.id = l.id
     where true${text}`);
  const [row] = await count.query<{ count: number }>(db, schema, { ...parameters, max: maxInt4 });
  return row?.count ?? 0;
}

/**
 * Counts, by status, the jobs that match the filter and that the action does not change. Finished jobs are counted only
 * if the filter names them by id.
 */
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
  const { text, parameters } = conditionsOf({ ...filter, statuses: others });
  const isNamed = filter.ids !== undefined;
  const count = new Statement(`
    select j.status, count(*)::int as count
      from ${isNamed ? '(select unnest(:ids::uuid[]) as id)' : distinctUnfinished(others)} l
      join ${tenant}.jobs j on j.id = l.id
     where true${text}
     group by j.status
     order by count(*) desc, j.status`);
  return count.query(db, schema, { ...parameters, max: isNamed ? undefined : maxInt4 });
}

function distinctUnfinished(of: readonly Status[]): string {
  return `(select distinct id from (${unfinishedIds(of)}) a)`;
}

function isUnfinished(status: Status): boolean {
  return areUnfinished([status]);
}

export interface NewOperation {
  action: OperationAction;
  filter: JobFilter;
  author: string | undefined;
  reason: string | undefined;
  /** Resumes one job first, and the others only if it succeeds. */
  canary?: boolean | undefined;
}

const insertOperation = statement(`
  insert into ${tenant}.operations (id, action, filter, author, reason, matched, canary)
  values (:id, :action, :filter, :author, :reason, :matched, :canary)
  returning ${columnList(operations, operationSelection)}`);

export async function createOperation(db: Queryable, schema: Schema, given: NewOperation): Promise<Operation> {
  const matched = await countJobs(db, schema, eligible(given.action, given.filter));
  const [operation] = await insertOperation.query<Operation>(db, schema, {
    id: newId(),
    action: given.action,
    filter: JSON.stringify(given.filter),
    author: given.author ?? null,
    reason: given.reason ?? null,
    matched,
    canary: given.canary ? 'waiting' : null,
  });
  return operation as Operation;
}

export async function findOperation(db: Queryable, schema: Schema, id: string): Promise<Operation | undefined> {
  const [operation] = await byId(db, schema, { id });
  return operation as Operation | undefined;
}

/** Newest first. A page ends early when its filters, which may name a thousand jobs each, have too many bytes. */
export async function listOperations(
  db: Queryable,
  schema: Schema,
  page: { before: string; limit: number },
): Promise<{ operations: Operation[]; next: string | undefined }> {
  const { text, values } = pageBefore.bind(schema, { before: page.before, limit: page.limit + 1 });
  const rows = await db.query<Operation & { found: string }>(withinBytes(text, 'id desc'), values);
  const shown = rows.slice(0, page.limit);
  return { operations: shown, next: Number(rows[0]?.found ?? 0) > shown.length ? shown.at(-1)?.id : undefined };
}

const drained = { action: 'resume', filter: { holdKind: 'drain' } } as const;

/** Resumes the jobs that shutdowns have paused, with one operation per tenant. Returns the number of jobs. */
export async function resumeDrainedJobs(
  db: Queryable,
  tenants: readonly Pick<Tenant, 'schema'>[],
  workerId: string,
): Promise<number> {
  let jobs = 0;
  for (const { schema } of tenants) {
    const count = await countJobs(db, schema, eligible(drained.action, drained.filter));
    if (count === 0) continue;
    await createOperation(db, schema, {
      ...drained,
      author: `worker:${workerId}`,
      reason: 'started again after a drain',
    });
    jobs += count;
  }
  return jobs;
}
