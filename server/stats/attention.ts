// Reads everything that needs a person, in a few bounded queries: holds and the jobs behind them, failing job types,
// schedules that could not enqueue, and disabled webhook URLs.
import type { Queryable } from '../database/database.ts';
import type { Schema } from '../database/identifiers.ts';
import { statement, tenant } from '../database/sql.ts';
import type { Event } from '../events/log/event.ts';
import { readLog } from '../events/log/read-log.ts';
import type { Job, JobError } from '../jobs/model/job.ts';
import { hasCode } from '../jobs/model/job-errors.ts';
import type { Status } from '../jobs/model/states.ts';
import { pageOfIds } from '../jobs/read/page-of-ids.ts';
import { readSummaries } from '../jobs/read/read-jobs.ts';
import { allQueues } from './read-counts.ts';

/** The maximum count of holds; one more means "more than". */
export const maxCounted = 10_000;
// A person reads a dozen; the job list has all of them.
const shownHolds = 12;
const shownTypes = 8;
const waitingCap = 1000;
// Failing types are found among this many of the newest failed jobs.
const maxGrouped = 5_000;

interface FailingType {
  type: string;
  count: number;
  last_job_id: string;
  last_at: string;
  error: JobError | null;
}

/** The newest holds, with the stacks of their errors. */
export async function readHolds(db: Queryable, schema: Schema): Promise<Job[]> {
  const { ids } = await pageOfIds(db, schema, { statuses: ['PAUSED', 'ERROR'] }, { limit: shownHolds });
  const holds = await readSummaries(db, schema, ids);
  return holds.sort((a, b) => ((a.heldSince ?? '') < (b.heldSince ?? '') ? 1 : -1));
}

const holdsIn = (status: Status) =>
  `(select count(*)::int from (select 1 from ${tenant}.jobs where status = '${status}' limit ${maxCounted + 1}) c)`;

const holdsStatement = statement(`
  select ${holdsIn('PAUSED')} as paused,
         ${holdsIn('ERROR')} as error`);

export async function countHolds(db: Queryable, schema: Schema): Promise<{ paused: number; error: number }> {
  const [row] = await holdsStatement.query<{ paused: number; error: number }>(db, schema, {});
  return row ?? { paused: 0, error: 0 };
}

const behindStatement = statement(`
  select t.id, w.waiting, w.oldest
    from unnest(:targetIds::text[]) as t(id)
   cross join lateral (
     select count(*)::int as waiting, min(created_at) as oldest
       from (
         select created_at
           from ${tenant}.jobs
          where target_id = t.id
            and lane_rank is not null
          limit :maxWaiting
       ) c
   ) w`);

/** The number of jobs that wait behind these targets. */
export async function readWaitingBehind(db: Queryable, schema: Schema, targetIds: readonly string[]) {
  const rows = await behindStatement.query<{ id: string; waiting: number; oldest: string | null }>(db, schema, {
    targetIds,
    maxWaiting: waitingCap + 1,
  });
  return new Map(rows.map((row) => [row.id, row]));
}

const failingStatement = statement(`
  with failed as (
    select id, type, held_since, error
      from ${tenant}.jobs
     where status = 'ERROR'
     order by id desc
     limit :maxGrouped
  ),
  grouped as (
    select type, count(*)::int as count, (array_agg(id order by held_since desc))[1] as last_job_id
      from failed
     group by type
     order by count(*) desc
     limit :shownTypes
  )
  select g.type, g.count, g.last_job_id, f.held_since as last_at, f.error - 'stack' - 'cause' - 'errors' as error
    from grouped g
    join failed f on f.id = g.last_job_id
   order by g.count desc, g.type`);

export async function readFailingTypes(db: Queryable, schema: Schema): Promise<FailingType[]> {
  return failingStatement.query<FailingType>(db, schema, { maxGrouped, shownTypes });
}

interface DisabledAddress {
  url: string;
  deliveries: number;
  since: string;
}

const disabledStatement = statement(`
  select url, count(*)::int as deliveries, min(created_at) as since
    from (
      select url, created_at
        from ${tenant}.webhook_deliveries
       where state = 'disabled'
       limit 5000
    ) d
   group by url
   order by count(*) desc
   limit 10`);

export async function readDisabledAddresses(db: Queryable, schema: Schema): Promise<DisabledAddress[]> {
  return disabledStatement.query<DisabledAddress>(db, schema, {});
}

interface FailedSchedule {
  id: string;
  name: string;
  at: string;
  message: string;
}

interface LostWorker {
  owner: string;
  /** The number of attempts that were lost with it. */
  attempts: number;
  last_at: string;
  last_job_id: string;
}

// Enough to see which workers are lost.
const maxLost = 200;

/** Workers whose leases expired in the last day. */
export async function readLostWorkers(db: Queryable, schema: Schema): Promise<LostWorker[]> {
  const lost = new Map<string, LostWorker>();
  for (const { owner, at, jobId } of await readZombies(db, schema, maxLost)) {
    const name = owner ?? 'unknown';
    const known = lost.get(name);
    if (known === undefined) lost.set(name, { owner: name, attempts: 1, last_at: at, last_job_id: jobId });
    else known.attempts += 1;
  }
  return [...lost.values()];
}

const hasSchedules = statement(`
  select exists (select from ${tenant}.schedules) as any, now() - interval '24 hours' as since`);

/** Reads the latest failure, or the latest missed runs, of each schedule in the last day. */
export async function readFailedSchedules(db: Queryable, schema: Schema): Promise<FailedSchedule[]> {
  const [row] = await hasSchedules.query<{ any: boolean; since: string }>(db, schema, {});
  if (!row?.any) return [];
  const { events } = await readLog(db, schema, {
    types: ['schedule.failed', 'schedule.missed'],
    since: row.since,
    limit: 50,
  });
  const latest = new Map<string, FailedSchedule>();
  for (const event of events) {
    const { schedule_id: id, name, message, missed } = (event.data ?? {}) as Record<string, string>;
    if (id === undefined || latest.has(id)) continue;
    latest.set(id, { id, name: name ?? id, at: event.at, message: message ?? missedText(Number(missed)) });
  }
  return [...latest.values()];
}

function missedText(count: number): string {
  return count === 1 ? 'It missed one run.' : `It missed ${count} runs.`;
}

// Zombies: attempts whose lease expired because their holder stopped renewing it. The roll-ups have the minutes with
// such attempts, and only those minutes are read from the log.

export interface Zombie {
  jobId: string;
  targetId: string | null;
  at: string;
  attempt: number | null;
  leaseId: string | null;
  /** The holder of the lease. */
  owner: string | null;
  /** `failed`: no attempt was left. */
  outcome: 'retried' | 'failed';
}

// Each minute is one read of the log. A day with more such minutes gets a shorter list.
const maxMinutes = 20;

const minutesStatement = statement(`
  select minute, minute + interval '1 minute' as ending
    from ${tenant}.stat_minutes
   where queue = :queue
     and minute > now() - interval '24 hours'
     and leases_expired > 0
   order by minute desc
   limit :maxMinutes`);

/** Lists those of the last 24 hours, newest first. */
export async function readZombies(db: Queryable, schema: Schema, limit: number): Promise<Zombie[]> {
  const minutes = await minutesStatement.query<{ minute: string; ending: string }>(db, schema, {
    queue: allQueues,
    maxMinutes,
  });
  const zombies: Zombie[] = [];
  for (const { minute, ending } of minutes) {
    if (zombies.length >= limit) break;
    const request = { types: ['job.lease_expired', 'job.failed'], since: minute, until: ending, limit: 1000 };
    const { events } = await readLog(db, schema, request);
    zombies.push(...events.flatMap(toZombie));
  }
  return zombies.slice(0, limit);
}

function toZombie(event: Event): Zombie[] {
  const error = event.data?.error as { code?: string; owner?: string } | undefined;
  const lost = event.type === 'job.lease_expired' || hasCode(error, 'LEASE_EXPIRED');
  if (!lost || event.jobId === null) return [];
  return [
    {
      jobId: event.jobId,
      targetId: event.targetId,
      at: event.at,
      attempt: event.attempt,
      leaseId: event.leaseId,
      owner: error?.owner ?? null,
      outcome: event.type === 'job.failed' ? 'failed' : 'retried',
    },
  ];
}
