// Usage of jobs by unit and day.
import type { Queryable } from '../database/database.ts';
import type { Schema } from '../database/identifiers.ts';
import { statement, tenant } from '../database/sql.ts';

export interface UsageDay {
  /** `2026-11-17`, UTC. */
  day: string;
  unit: string;
  /** Null for the whole tenant. */
  type: string | null;
  used: number;
}

const daysStatement = statement(`
  select day::text as day, unit, nullif(substr(scope, 6), '') as type, used::float8 as used
    from ${tenant}.usage_days
   where day > (now() at time zone 'UTC')::date - :days::int
     and (scope = '' or starts_with(scope, 'type:'))
   order by day, scope, unit
   limit 10000`);

/** The last `days` days, today included. */
export async function readUsageDays(db: Queryable, schema: Schema, days: number): Promise<UsageDay[]> {
  return daysStatement.query<UsageDay & Record<string, unknown>>(db, schema, { days });
}

const todayStatement = statement(`
  select scope, unit, used::float8 as used
    from ${tenant}.usage_days
   where day = (now() at time zone 'UTC')::date
   order by used desc, scope
   limit 10000`);

export interface UsageToday {
  /** '' is the tenant, others are `type:…` and `target:…`. */
  scope: string;
  unit: string;
  used: number;
}

export async function readUsageToday(db: Queryable, schema: Schema): Promise<UsageToday[]> {
  return todayStatement.query<UsageToday & Record<string, unknown>>(db, schema, {});
}

const pruneStatement = statement(`
  delete from ${tenant}.usage_days where day < (now() at time zone 'UTC')::date - :days::int`);

/** Deletes days that are older than `days`. */
export async function pruneUsageDays(db: Queryable, schema: Schema, days: number): Promise<void> {
  await pruneStatement.query(db, schema, { days });
}
