// Reports of a running attempt: progress of the job and its phase, usage, and the checkpoint. Every write is fenced. A
// result of false or undefined means that the lease no longer owns the job and nothing was written.
import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { statement, statementVariants, tenant } from '../../database/sql.ts';
import { insertEvents, whileRunning } from '../../events/log/record.ts';
import type { BudgetSettings } from '../../tenants/named-settings.ts';
import { fence, type HeldJob } from '../claim/lease.ts';
import {
  type BudgetedJob,
  type DayUsage,
  findSpentDay,
  type Spent,
  type Units,
  usageScopes,
} from '../model/job-budget.ts';

export interface Report {
  progress?: { percent: number; message?: string | undefined; phase?: { name: string; percent: number } | undefined };
  /**
   * Usage of the job over all attempts, by unit. The amounts are totals, so a report whose answer was lost can be sent
   * again.
   */
  usage?: Units;
  /** The scopes in which the usage of the day is counted; see jobs/model/job-budget.ts. */
  scopes?: readonly string[];
}

export interface SavedReport {
  /** Usage of the scopes today, for the units that were reported. */
  days: DayUsage[];
}

const lockUsage = `before as materialized (
    select j.id, j.tokens_used, j.usage,
           greatest(j.tokens_used, (:usage::jsonb ->> 'tokens')::bigint) as tokens_after,
           nullif(coalesce(j.usage, '{}') || (:usage::jsonb - 'tokens'), '{}') as usage_after
      from ${tenant}.jobs j
     where ${fence}
       for update
  ),`;

// The increase is counted once, even if the report is sent twice: `before` is the locked row of the job.
const countUsage = `used as (
    select b.id, u.key as unit, u.value::numeric as amount,
           u.value::numeric - coalesce(case when u.key = 'tokens' then b.tokens_used else (b.usage ->> u.key)::numeric end, 0) as added
      from before b
     cross join jsonb_each_text(:usage::jsonb) as u
  ),
  counted as (
    insert into ${tenant}.usage_days as d (day, scope, unit, used)
    select (now() at time zone 'UTC')::date, s.scope, u.unit, greatest(0, u.added)
      from used u
     cross join unnest(:scopes::text[]) as s(scope)
     order by s.scope, u.unit
    on conflict (day, scope, unit) do update set used = d.used + excluded.used
    returning d.scope, d.unit, d.used::float8 as used
  ),`;

const reportStatement = statementVariants<{ hasUsage: boolean }>(
  ({ hasUsage }) => `
  with ${hasUsage ? lockUsage : ''}
  saved as (
    update ${tenant}.jobs j
       set progress = coalesce(:percent::real, j.progress),
           progress_message = coalesce(:message, j.progress_message),
           ${hasUsage ? 'tokens_used = b.tokens_after, usage = b.usage_after,' : ''}
           updated_at = now()
      ${hasUsage ? 'from before b' : ''}
     where ${fence}
       ${hasUsage ? 'and j.id = b.id' : ''}
    returning j.id, j.target_id, j.attempt, j.lease_id
  ),
  ${hasUsage ? countUsage : ''}
  phase as (
    update ${tenant}.phases p
       set progress = :phasePercent::real,
           message = coalesce(:message, p.message)
      from saved s
     where p.job_id = s.id
       and p.name = :phase
       and p.status = 'running'
  ),
  recorded as (
    ${insertEvents(tenant, {
      ...whileRunning,
      source: 'saved cross join jsonb_to_recordset(:events::jsonb) as e(type text, data jsonb)',
      type: 'e.type',
      actor: ':actor',
      data: 'e.data',
    })}
  )
  select id, ${hasUsage ? `(select jsonb_agg(to_jsonb(c)) from counted c)` : 'null::jsonb'} as days from saved`,
);

/** Returns undefined if the lease no longer owns the job, and nothing was written. */
export async function saveReport(
  db: Queryable,
  schema: Schema,
  { jobId, leaseId }: HeldJob,
  { progress, usage, scopes = [''] }: Report,
  actor: string,
): Promise<SavedReport | undefined> {
  const events = [
    ...(progress === undefined ? [] : [{ type: 'job.progress', data: progressEventData(progress) }]),
    ...(usage === undefined ? [] : [{ type: 'job.usage', data: usageEventData(usage) }]),
  ];
  const hasUsage = usage !== undefined;
  const [row] = await reportStatement({ hasUsage }).query<{ days: DayUsage[] | null }>(db, schema, {
    jobId,
    leaseId,
    percent: progress?.percent ?? null,
    message: progress?.message ?? null,
    usage: hasUsage ? JSON.stringify(usage) : undefined,
    scopes: hasUsage ? scopes : undefined,
    phase: progress?.phase?.name ?? null,
    phasePercent: progress?.phase?.percent ?? 0,
    events: JSON.stringify(events),
    actor,
  });
  return row && { days: row.days ?? [] };
}

function usageEventData({ tokens, ...units }: Units): object {
  return {
    ...(tokens !== undefined && { tokens_used: tokens }),
    ...(Object.keys(units).length > 0 && { usage: units }),
  };
}

function progressEventData({ percent, message, phase }: NonNullable<Report['progress']>): object {
  return {
    progress: percent,
    ...(message !== undefined && { message }),
    ...(phase !== undefined && { phase: phase.name, phase_progress: phase.percent }),
  };
}

const checkpointStatement = statement(`
  update ${tenant}.jobs j
     set checkpoint = :checkpoint::jsonb,
         updated_at = now()
   where ${fence}
  returning j.id`);

export async function saveCheckpoint(
  db: Queryable,
  schema: Schema,
  { jobId, leaseId }: HeldJob,
  state: unknown,
): Promise<boolean> {
  const checkpoint = JSON.stringify(state ?? null);
  return (await checkpointStatement.query(db, schema, { jobId, leaseId, checkpoint })).length > 0;
}

const daysStatement = statement(`
  select scope, unit, used::float8 as used
    from ${tenant}.usage_days
   where day = (now() at time zone 'UTC')::date
     and scope = any(:scopes::text[])`);

/** Returns the budget of the day that is used up for this job, if the job uses its unit. */
export async function readSpentDay(
  db: Queryable,
  schema: Schema,
  job: BudgetedJob & { usage: Units | null; tokensUsed: number },
  budgets: BudgetSettings = {},
): Promise<Spent | undefined> {
  const used: Units = { ...job.usage, tokens: job.tokensUsed };
  const daily = Object.values(budgets).filter(({ per, unit }) => per !== 'job' && (used[unit] ?? 0) > 0);
  if (daily.length === 0) return undefined;
  const days = await daysStatement.query<DayUsage & Record<string, unknown>>(db, schema, {
    scopes: usageScopes(job, budgets),
  });
  return findSpentDay(
    job,
    days.filter(({ unit }) => daily.some((budget) => budget.unit === unit)),
    budgets,
  );
}
