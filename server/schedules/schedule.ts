// A schedule: its times and zone, the request that it enqueues, and its policy for missed runs. The row, and reads of
// it.
import { and, asc, eq, gt, isNotNull, isNull, sql } from 'drizzle-orm';
import type { Queryable } from '../database/database.ts';
import type { Schema } from '../database/identifiers.ts';
import { jsonBytes, withinBytes } from '../database/reads/bounded-reads.ts';
import { build, columnList, columnsOf, defineRead, type RowOf } from '../database/reads/drizzle.ts';
import { schedules } from '../database/tables/tenant.ts';
import type { JobRequest } from '../jobs/enqueue/job-request.ts';
import { problem } from '../kernel/errors.ts';
import { isUuid } from '../kernel/fields.ts';

export const missedPolicies = ['skip', 'latest', 'all'] as const;
export type MissedPolicy = (typeof missedPolicies)[number];

/** The enqueue request of each firing. The schedule itself sets its time and its idempotency key. */
export type ScheduledJob = Omit<JobRequest, 'run_at' | 'client_request_id'>;

export interface Schedule extends RowOf<typeof schedules> {
  job: ScheduledJob;
  missed: MissedPolicy;
}

const selection = columnsOf(schedules);
export const scheduleColumns = columnList(schedules, selection);

const byId = defineRead<{ id: string }>()(({ id }) =>
  build.select(selection).from(schedules).where(eq(schedules.id, id)),
);
const byIdForUpdate = defineRead<{ id: string }>()(({ id }) =>
  build.select(selection).from(schedules).where(eq(schedules.id, id)).for('update'),
);
const pageAfter = defineRead<{ after: string; limit: number }>()(({ after, limit }) =>
  build
    .select({ ...selection, bytes: sql.raw(jsonBytes('job')).as('bytes') })
    .from(schedules)
    .where(gt(schedules.name, after))
    .orderBy(asc(schedules.name))
    .limit(limit),
);
const nextFiring = defineRead<object>()(() =>
  build
    .select({ ms: sql<number>`extract(epoch from (${schedules.nextAt} - now()))::float8 * 1000`.as('ms') })
    .from(schedules)
    .where(and(isNull(schedules.pausedAt), isNotNull(schedules.nextAt)))
    .orderBy(asc(schedules.nextAt))
    .limit(1),
);

export async function getSchedule(db: Queryable, schema: Schema, id: string): Promise<Schedule> {
  return found(isUuid(id) ? await byId(db, schema, { id }) : []);
}

/** The same read with a lock, so that no other transaction fires or changes the schedule. */
export async function lockSchedule(tx: Queryable, schema: Schema, id: string): Promise<Schedule> {
  return found(isUuid(id) ? await byIdForUpdate(tx, schema, { id }) : []);
}

function found(rows: RowOf<typeof schedules>[]): Schedule {
  if (rows[0] === undefined) throw problem('NOT_FOUND', 'There is no such schedule.');
  return rows[0] as Schedule;
}

/** In the order of names. A page ends early if its jobs have too many bytes. */
export async function listSchedules(
  db: Queryable,
  schema: Schema,
  page: { after: string; limit: number },
): Promise<{ schedules: Schedule[]; next: string | undefined }> {
  const { text, values } = pageAfter.bind(schema, { after: page.after, limit: page.limit + 1 });
  const rows = await db.query<Schedule & { found: string }>(withinBytes(text, 'name'), values);
  const shown = rows.slice(0, page.limit);
  return { schedules: shown, next: Number(rows[0]?.found ?? 0) > shown.length ? shown.at(-1)?.name : undefined };
}

/** Milliseconds until the next firing; undefined if there is none. */
export async function nextFiringInMs(db: Queryable, schema: Schema): Promise<number | undefined> {
  const [row] = await nextFiring(db, schema, {});
  return row && Math.max(0, row.ms);
}

/**
 * With `schema` it may be the first statement of a transaction, which in a cluster chooses the node by a table it
 * names.
 */
export async function databaseNow(db: Queryable, schema?: Schema): Promise<string> {
  const table = schema === undefined ? '' : `from (select 1) as one left join ${schema}.schedules on false`;
  const text = `select now() as now ${table}`;
  const rows = await db.query<{ now: string }>(text);
  return rows[0]?.now ?? '';
}

/** The actor of events that a schedule causes. */
export function actorOf(schedule: Pick<Schedule, 'name'>): string {
  return `schedule:${schedule.name}`;
}
