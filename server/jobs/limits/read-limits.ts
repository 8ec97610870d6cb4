// Reads the current counts of limits for the API: waiting and running jobs, and available tokens. The gate does its own
// counting.

import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { statement, tenant } from '../../database/sql.ts';
import { isAtGate, isInUse } from '../../database/tables/tenant-jobs.ts';
import { burstOf, type Limit, tokenSeconds } from '../../tenants/named-settings.ts';
import { limitNameOf } from './limit-keys.ts';

interface KeyUse {
  /** The counted value; empty for a limit without a key. */
  value: string;
  /** The number of waiting heads and jobs without a lane. */
  waiting: number;
  /** The number of jobs that run or are about to be claimed. */
  running: number;
  /** The number of starts that are possible at once; null without a rate. */
  tokens: number | null;
  /** The time of the next token, if there is none. */
  nextAt: string | null;
}

export interface LimitUse extends Limit {
  waiting: number;
  running: number;
  /** The keys with the most waiting jobs. */
  keys: KeyUse[];
}

// Beyond these maxima the numbers are lower bounds.
const maxWaiting = 20_000;
const maxBuckets = 5000;
const maxKeys = 20;

interface UseRow {
  key: string;
  waiting: number;
  running: number;
  fill_seconds: number;
  now: string;
}

const useStatement = statement(`
  with waiting as (
    select k.key, count(*)::int as count
      from (select j.limit_keys from ${tenant}.jobs j where ${isAtGate('j.')} limit :maxWaiting) as w
     cross join lateral unnest(w.limit_keys[2:]) as k(key)
     group by k.key
  ),
  running as (
    select k.key, count(*)::int as count
      from ${tenant}.jobs j
     cross join lateral unnest(j.limit_keys[2:]) as k(key)
     where ${isInUse('j.')}
     group by k.key
  ),
  buckets as (
    select key, extract(epoch from full_at - now())::float8 as seconds
      from ${tenant}.limit_buckets
     where full_at > now()
       and key <> ''
     order by full_at desc
     limit :maxBuckets
  )
  select coalesce(w.key, r.key, b.key) as key,
         coalesce(w.count, 0) as waiting,
         coalesce(r.count, 0) as running,
         coalesce(b.seconds, 0) as fill_seconds,
         now() as now
    from waiting w
    full join running r on r.key = w.key
    full join buckets b on b.key = coalesce(w.key, r.key)`);

export async function readLimitUse(db: Queryable, schema: Schema, limits: readonly Limit[]): Promise<LimitUse[]> {
  const rows = await useStatement.query<UseRow>(db, schema, { maxWaiting, maxBuckets });
  return limits.map((limit) => {
    const own = rows.filter((row) => limitNameOf(row.key) === limit.name);
    own.sort((a, b) => b.waiting - a.waiting || b.running - a.running || (a.key < b.key ? -1 : 1));
    return {
      ...limit,
      waiting: own.reduce((sum, row) => sum + row.waiting, 0),
      running: own.reduce((sum, row) => sum + row.running, 0),
      keys: own.slice(0, maxKeys).map((row) => toKeyUse(limit, row)),
    };
  });
}

function toKeyUse(limit: Limit, row: UseRow): KeyUse {
  const { waiting, running } = row;
  const value = row.key.slice(limit.name.length + 1);
  const seconds = tokenSeconds(limit);
  if (seconds === undefined) return { value, waiting, running, tokens: null, nextAt: null };
  const burst = burstOf(limit);
  const tokens = Math.max(0, Math.floor(burst - row.fill_seconds / seconds + 1e-6));
  const waitMs = (row.fill_seconds - (burst - 1) * seconds) * 1000;
  const nextAt = tokens > 0 ? null : new Date(Date.parse(row.now) + waitMs).toISOString();
  return { value, waiting, running, tokens, nextAt };
}

export interface LimitWait {
  limit: Limit;
  value: string;
  running: number;
  /** The number of waiting jobs with the same keys before this one, at most `maxWaiting`. */
  ahead: number;
  /** The time at which the job gets its token, if only tokens are missing. */
  at: string | null;
  /** True if this limit has no room for the job now. */
  isShort: boolean;
}

interface WaitRow {
  key: string;
  running: number;
  ahead: number;
  fill_seconds: number;
  now: string;
}

const waitStatement = statement(`
  select k.key,
         (select count(*)::int
            from ${tenant}.jobs j
           where ${isInUse('j.')}
             and k.key = any(j.limit_keys[2:])) as running,
         (select count(*)::int
            from (select 1
                    from ${tenant}.jobs j
                   where ${isAtGate('j.')}
                     and j.limit_keys = :limitKeys::text[]
                     and (j.priority, j.created_at, j.id) < (:priority::smallint, :createdAt::timestamptz, :id::uuid)
                   limit :maxWaiting) as a) as ahead,
         coalesce(extract(epoch from b.full_at - now()), 0)::float8 as fill_seconds,
         now() as now
    from unnest(:limitKeys::text[]) with ordinality as k(key, n)
    left join ${tenant}.limit_buckets b on b.key = k.key
   where k.n > 1
   order by k.n`);

interface GatedJob {
  id: string;
  limitKeys: readonly string[];
  createdAt: string;
}

/** Returns each limit of a job at the gate, and the time of its turn if only tokens decide it. */
export async function readLimitWaits(
  db: Queryable,
  schema: Schema,
  limits: readonly Limit[],
  { id, limitKeys, createdAt }: GatedJob,
  priority: number,
): Promise<LimitWait[]> {
  const rows = await waitStatement.query<WaitRow>(db, schema, { id, limitKeys, createdAt, priority, maxWaiting });
  return rows.flatMap((row) => {
    const limit = limits.find(({ name }) => name === limitNameOf(row.key));
    return limit === undefined ? [] : [toLimitWait(limit, row)];
  });
}

function toLimitWait(limit: Limit, row: WaitRow): LimitWait {
  const { running, ahead } = row;
  const value = row.key.slice(limit.name.length + 1);
  const isFull = limit.concurrency !== undefined && running + ahead >= limit.concurrency;
  const seconds = tokenSeconds(limit);
  if (seconds === undefined) return { limit, value, running, ahead, at: null, isShort: isFull };
  const waitSeconds = row.fill_seconds + (ahead + 1 - burstOf(limit)) * seconds;
  const at = waitSeconds <= 0 ? null : new Date(Date.parse(row.now) + waitSeconds * 1000).toISOString();
  return { limit, value, running, ahead, at: isFull ? null : at, isShort: isFull || at !== null };
}
