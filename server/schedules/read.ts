// Reading schedules: one, or all by name.
import type { Queryable } from '../database/database.ts';
import type { Schema } from '../database/identifiers.ts';
import { jsonBytes, withinBytes } from '../database/json-bytes.ts';
import { problem } from '../kernel/errors.ts';
import { isUuid } from '../kernel/fields.ts';
import { type Schedule, scheduleColumns } from './schedule.ts';

export async function mustFindSchedule(db: Queryable, schema: Schema, id: string): Promise<Schedule> {
  const rows = isUuid(id)
    ? await db.query<Schedule>(`select ${scheduleColumns} from ${schema}.schedules where id = $1`, [id])
    : [];
  if (rows[0] === undefined) throw problem('NOT_FOUND', 'There is no such schedule.');
  return rows[0];
}

/** The same, locked: nobody fires or changes it meanwhile. */
export async function lockSchedule(tx: Queryable, schema: Schema, id: string): Promise<Schedule> {
  if (isUuid(id)) await tx.query(`select id from ${schema}.schedules where id = $1 for update`, [id]);
  return mustFindSchedule(tx, schema, id);
}

export async function listSchedules(
  db: Queryable,
  schema: Schema,
  page: { after: string; limit: number },
): Promise<{ schedules: Schedule[]; next: string | undefined }> {
  const found = `select ${scheduleColumns}, ${jsonBytes('job')} as bytes from ${schema}.schedules
      where name > $1 order by name limit $2`;
  const rows = await db.query<Schedule & { found: string }>(withinBytes(found, 'name'), [page.after, page.limit + 1]);
  const schedules = rows.slice(0, page.limit);
  return { schedules, next: Number(rows[0]?.found ?? 0) > schedules.length ? schedules.at(-1)?.name : undefined };
}

export async function databaseNow(db: Queryable): Promise<string> {
  const rows = await db.query<{ now: string }>('select now() as now');
  return rows[0]?.now ?? '';
}

/** Milliseconds until the next firing; undefined if there is none. */
export async function nextFiringInMs(db: Queryable, schema: Schema): Promise<number | undefined> {
  const rows = await db.query<{ ms: number }>(
    `select extract(epoch from (next_at - now()))::float8 * 1000 as ms from ${schema}.schedules
      where paused_at is null and next_at is not null order by next_at limit 1`,
  );
  return rows[0] && Math.max(0, rows[0].ms);
}
