// Current counts of a tenant or queue, from the roll-ups: a few rows, however many jobs there are.

import type { Queryable } from '../database/database.ts';
import type { Schema } from '../database/identifiers.ts';
import { statement, tenant } from '../database/sql.ts';
import { isClaimable } from '../database/tables/tenant-jobs.ts';
import { type Status, statuses, unstartedStatuses } from '../jobs/model/states.ts';

/**
 * The row of the whole tenant, next to those of its queues, so that a tenant's chart does not read a thousand queues.
 */
export const allQueues = '';
/** The row with the current counts instead of the changes of one minute. */
export const currentCountsKey = '-infinity';

export type StatusCounts = Record<Status, number>;

export interface StatsSnapshot {
  jobs: { queued: number; running: number; failed_last_24h: number };
  leases: { active: number; expired_last_24h: number };
}

const lastDayStatement = statement(`
  select coalesce(sum(failed), 0)::float8 as failed, coalesce(sum(leases_expired), 0)::float8 as expired
    from ${tenant}.stat_minutes
   where queue = :queue
     and minute > now() - interval '24 hours'`);

/** Current counts, and failures and lost leases of the last day. The capacity is added by the scheduler's API. */
export async function readSnapshot(db: Queryable, schema: Schema, queue = allQueues): Promise<StatsSnapshot> {
  const counts = await readCounts(db, schema, queue);
  const [day] = await lastDayStatement.query<{ failed: number; expired: number }>(db, schema, { queue });
  return {
    jobs: { queued: sumCounts(counts, unstartedStatuses), running: counts.RUNNING, failed_last_24h: day?.failed ?? 0 },
    // Every running job has exactly one active lease, and no other job has one.
    leases: { active: counts.RUNNING, expired_last_24h: day?.expired ?? 0 },
  };
}

const countsStatement = statement(`
  select deltas
    from ${tenant}.stat_minutes
   where queue = :queue
     and minute = '${currentCountsKey}'`);

/** Jobs in each status. */
export async function readCounts(db: Queryable, schema: Schema, queue = allQueues): Promise<StatusCounts> {
  const [row] = await countsStatement.query<{ deltas: Record<string, number> }>(db, schema, { queue });
  return toCounts(row?.deltas ?? {});
}

export interface QueueCounts {
  queue: string;
  counts: StatusCounts;
}

const queuesStatement = statement(`
  select queue, deltas
    from ${tenant}.stat_minutes
   where queue > :after
     and minute = '${currentCountsKey}'
   order by queue
   limit :limit`);

/** Queues by name, after `after`. */
export async function readQueueCounts(
  db: Queryable,
  schema: Schema,
  options: { after?: string; limit: number },
): Promise<QueueCounts[]> {
  const { after = allQueues, limit } = options;
  const rows = await queuesStatement.query<{ queue: string; deltas: Record<string, number> }>(db, schema, {
    after,
    limit,
  });
  return rows.map((row) => ({ queue: row.queue, counts: toCounts(row.deltas) }));
}

function sumCounts(counts: StatusCounts, of: readonly Status[]): number {
  return of.reduce((sum, status) => sum + counts[status], 0);
}

function toCounts(deltas: Record<string, number>): StatusCounts {
  return Object.fromEntries(statuses.map((status) => [status, Math.max(0, deltas[status] ?? 0)])) as StatusCounts;
}

/**
 * Returns how long the oldest claimable job has waited; 0 if there is none. For a whole tenant this probes the claim
 * index once per priority, and for remote jobs once per priority and queue with waiting jobs. Jobs for daemons have no
 * index by queue, so for a single queue the next ten thousand claimable jobs are read.
 */
export async function readOldestSeconds(db: Queryable, schema: Schema, queue = allQueues): Promise<number> {
  const [row] = await oldestAge.query<{ seconds: number | null }>(db, schema, { allQueues, queue });
  return Math.max(0, row?.seconds ?? 0);
}

/** SQL: when the first claimable job of each priority `p` could have run. */
function firstRunAt(by: 'daemon' | 'remoteWorker', condition: string): string {
  return `(
      select run_at
        from ${tenant}.jobs
       where ${isClaimable(by)}
         and ${condition}
         and priority = p.priority
       order by created_at, id
       limit 1
    )`;
}

/** SQL: since when the oldest claimable job waits, of the queue `:queue` or of all; null if there is none. */
export const selectOldestRunAt = `
  with queues as (
    select queue
      from ${tenant}.stat_minutes
     where minute = '${currentCountsKey}'
       and queue <> :allQueues
       and (:queue = :allQueues or queue = :queue)
       and (deltas ->> 'QUEUED')::int > 0
     order by queue
     limit 100
  ),
  next_for_daemons as (
    select run_at, queue
      from ${tenant}.jobs
     where ${isClaimable('daemon')}
       and :queue <> :allQueues
     order by priority, created_at, id
     limit 10000
  ),
  oldest as (
    select ${firstRunAt('daemon', ':queue = :allQueues')} as run_at
      from generate_series(0, 3) as p(priority)
    union all
    select min(run_at)
      from next_for_daemons
     where queue = :queue
    union all
    select ${firstRunAt('remoteWorker', 'queue = q.queue')}
      from queues q
     cross join generate_series(0, 3) as p(priority)
  )
  select min(run_at) from oldest`;

const oldestAge = statement(`
  select extract(epoch from now() - (${selectOldestRunAt}))::float8 as seconds`);
