// Creates, changes, pauses, resumes and deletes schedules. Each change records its event in the same transaction.

import type { Database, Queryable } from '../database/database.ts';
import type { Schema } from '../database/identifiers.ts';
import { statement, tenant } from '../database/sql.ts';
import { sqlState } from '../database/sql-errors.ts';
import { recordEvent } from '../events/log/record.ts';
import { problem } from '../kernel/errors.ts';
import { invalidFields } from '../kernel/fields.ts';
import { newId } from '../kernel/ids.ts';
import { findCronError, nextTime } from './cron.ts';
import {
  databaseNow,
  getSchedule,
  lockSchedule,
  type MissedPolicy,
  type Schedule,
  type ScheduledJob,
} from './schedule.ts';

export interface NewSchedule {
  name: string;
  cron: string;
  timezone: string;
  job: ScheduledJob;
  missed: MissedPolicy;
  author?: string | undefined;
}

export type ScheduleChange = { [K in keyof Omit<NewSchedule, 'author'>]?: NewSchedule[K] | undefined };

const insertStatement = statement(`
  insert into ${tenant}.schedules (id, name, cron, timezone, job, missed, next_at, author)
  values (:id, :name, :cron, :timezone, :job, :missed, :nextAt, :author)`);

const updateStatement = statement(`
  update ${tenant}.schedules
     set name = :name,
         cron = :cron,
         timezone = :timezone,
         job = :job,
         missed = :missed,
         next_at = :nextAt,
         updated_at = now()
   where id = :id`);

function storedFields({ name, cron, timezone, job, missed }: Omit<NewSchedule, 'author'>) {
  return { name, cron, timezone, job: JSON.stringify(job), missed };
}

export async function createSchedule(
  db: Database,
  schema: Schema,
  given: NewSchedule,
  actor: string,
): Promise<Schedule> {
  const id = newId();
  return withUniqueName(given.name, () =>
    db.transaction(async (tx) => {
      const nextAt = nextOf(given, await databaseNow(tx, schema));
      await insertStatement.query(tx, schema, { id, ...storedFields(given), nextAt, author: given.author ?? null });
      return recordChange(tx, schema, id, 'schedule.created', actor);
    }),
  );
}

export async function updateSchedule(
  db: Database,
  schema: Schema,
  id: string,
  change: ScheduleChange,
  actor: string,
): Promise<Schedule> {
  return withUniqueName(change.name ?? '', () =>
    db.transaction(async (tx) => {
      const before = await lockSchedule(tx, schema, id);
      const after = { ...before, ...definedOnly(change) } as Schedule;
      const timesChanged = after.cron !== before.cron || after.timezone !== before.timezone;
      const nextAt = timesChanged ? nextOf(after, await databaseNow(tx, schema)) : before.nextAt;
      await updateStatement.query(tx, schema, { id, ...storedFields(after), nextAt });
      return recordChange(tx, schema, id, 'schedule.updated', actor, { fields: Object.keys(definedOnly(change)) });
    }),
  );
}

const pauseStatement = statement(`
  update ${tenant}.schedules
     set paused_at = now(),
         paused_by = :actor,
         updated_at = now()
   where id = :id`);

export async function pauseSchedule(db: Database, schema: Schema, id: string, actor: string): Promise<Schedule> {
  return db.transaction(async (tx) => {
    const schedule = await lockSchedule(tx, schema, id);
    if (schedule.pausedAt !== null) return schedule;
    await pauseStatement.query(tx, schema, { id, actor });
    return recordChange(tx, schema, id, 'schedule.paused', actor);
  });
}

const resumeStatement = statement(`
  update ${tenant}.schedules
     set paused_at = null,
         paused_by = null,
         next_at = :nextAt,
         updated_at = now()
   where id = :id`);

/** The next firing is at the first time from now on. Times during the pause do not count as missed. */
export async function resumeSchedule(db: Database, schema: Schema, id: string, actor: string): Promise<Schedule> {
  return db.transaction(async (tx) => {
    const schedule = await lockSchedule(tx, schema, id);
    if (schedule.pausedAt === null) return schedule;
    const nextAt = nextTime(schedule.cron, schedule.timezone, await databaseNow(tx, schema));
    await resumeStatement.query(tx, schema, { id, nextAt });
    return recordChange(tx, schema, id, 'schedule.resumed', actor);
  });
}

const deleteStatement = statement(`delete from ${tenant}.schedules where id = :id`);

/** Jobs that the schedule has enqueued stay. */
export async function deleteSchedule(db: Database, schema: Schema, id: string, actor: string): Promise<void> {
  await db.transaction(async (tx) => {
    await lockSchedule(tx, schema, id);
    await recordChange(tx, schema, id, 'schedule.deleted', actor);
    await deleteStatement.query(tx, schema, { id });
  });
}

function nextOf({ cron, timezone }: Pick<NewSchedule, 'cron' | 'timezone'>, now: string): string {
  const error = findCronError(cron, timezone);
  if (error) throw invalidFields([error]);
  const nextAt = nextTime(cron, timezone, now);
  if (nextAt === null) throw invalidFields([{ field: 'cron', message: 'never comes' }]);
  return nextAt;
}

async function recordChange(
  tx: Queryable,
  schema: Schema,
  id: string,
  type: string,
  actor: string,
  data: object = {},
): Promise<Schedule> {
  const schedule = await getSchedule(tx, schema, id);
  const { name, cron, timezone } = schedule;
  await recordEvent(tx, schema, { type, actor, data: { schedule_id: id, name, cron, timezone, ...data } });
  return schedule;
}

async function withUniqueName<T>(name: string, work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    if (sqlState(error) !== '23505') throw error;
    throw problem('ALREADY_EXISTS', `There is already a schedule named ${JSON.stringify(name)}.`, { field: 'name' });
  }
}

function definedOnly<T extends object>(given: T): Partial<T> {
  return Object.fromEntries(Object.entries(given).filter(([, value]) => value !== undefined)) as Partial<T>;
}
