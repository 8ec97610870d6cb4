// The gate of limits. A job that a limit counts is `gated` when it is queued, and then no claim index has it. The gate
// opens as many jobs as the limits allow, and claims take them like all others, so the claim needs no code for limits.
// Running jobs are counted from their rows: however a job ends, the same commit frees its slot, once.
//
// Runs of several daemons take turns with the lock of one row. Jobs are visited by their keys, not one by one: any
// number of jobs behind a limit costs one index probe.
import type { Database, Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { statement, tenant } from '../../database/sql.ts';
import { isAtGate, isInUse } from '../../database/tables/tenant-jobs.ts';
import { burstOf, type Limit, tokenSeconds } from '../../tenants/named-settings.ts';

export interface GateRequest {
  limits: readonly Limit[];
  /** The claimants whose jobs are opened; see limit-keys.ts. */
  claimants: readonly string[];
  /** The number of jobs that the claimants can take now, including jobs that are open already. */
  room: number;
  /** The position at which the last run stopped, if it could not visit all keys. */
  from?: GatePosition | undefined;
}

/** The last keys that were visited, by claimant. */
export type GatePosition = Readonly<Record<string, string[]>>;

export interface GateResult {
  opened: number;
  /** Milliseconds until the next token that a waiting job needs; undefined if no job waits for a token. */
  nextMs: number | undefined;
  /** The position of the next run, if there are more keys. */
  position: GatePosition | undefined;
}

// Each group costs one or two index probes, so a run takes milliseconds.
const maxGroups = 500;
// A claim normally follows within milliseconds. Otherwise the daemon that opened the job is gone or has no room, while
// others wait.
const unclaimedSeconds = 30;

export async function openGate(db: Database, schema: Schema, request: GateRequest): Promise<GateResult> {
  const { limits, claimants, room, from = {} } = request;
  const rows = await db.pipelinedTransaction(async (tx) => {
    const [, , opened] = await Promise.all([
      lockStatement.query(tx, schema, {}, 'prepared'),
      closeStatement.query(tx, schema, { unclaimedSeconds }, 'prepared'),
      gateStatement.query<GateRow>(
        tx,
        schema,
        {
          limits: JSON.stringify(limits.map(toGateLimit)),
          claimants: JSON.stringify(claimants.map((who) => ({ who, after: from[who] ?? null }))),
          room,
          maxGroups,
        },
        'prepared',
      ),
    ]);
    return opened;
  });
  const { opened, next_ms, positions } = rows[0] ?? { opened: 0, next_ms: null, positions: null };
  return { opened, nextMs: next_ms ?? undefined, position: positions ?? undefined };
}

function toGateLimit(limit: Limit) {
  const { name, concurrency } = limit;
  const seconds = tokenSeconds(limit);
  return seconds === undefined ? { name, concurrency } : { name, concurrency, seconds, burst: burstOf(limit) };
}

interface GateRow {
  opened: number;
  next_ms: number | null;
  positions: GatePosition | null;
}

const lockStatement = statement(`
  insert into ${tenant}.limit_buckets (key, full_at)
  values ('', now())
  on conflict (key) do update set full_at = excluded.full_at`);

const closeStatement = statement(`
  update ${tenant}.jobs j
     set gated = true,
         updated_at = now()
   where j.limit_keys is not null
     and not j.gated
     and j.status = 'QUEUED'
     and j.updated_at < now() - :unclaimedSeconds::float8 * interval '1 second'`);

// `walk` visits distinct keys by their index. `rooms` has the free slots and tokens of each limit key. A job is picked
// if all its keys have room. Jobs of different keys share the claimants' room evenly.
/** @internal Exported for its test. */
export const gateStatement = statement(`
  with recursive limits as materialized (
    select name, seconds, burst, concurrency
      from jsonb_to_recordset(:limits::jsonb) as l(name text, seconds float8, burst float8, concurrency int)
  ),
  claimants as materialized (
    select who, after from jsonb_to_recordset(:claimants::jsonb) as c(who text, after text[])
  ),
  walk as (
    select c.who,
           1 as visited,
           (select j.limit_keys
              from ${tenant}.jobs j
             where ${isAtGate('j.')}
               and j.limit_keys > coalesce(c.after, array[c.who])
             order by j.limit_keys
             limit 1) as keys
      from claimants c
    union all
    select w.who,
           w.visited + 1,
           (select j.limit_keys
              from ${tenant}.jobs j
             where ${isAtGate('j.')}
               and j.limit_keys > w.keys
             order by j.limit_keys
             limit 1)
      from walk w
     where w.keys[1] = w.who
       and w.visited <= :maxGroups
  ),
  groups as materialized (
    select keys from walk where keys[1] = who and visited <= :maxGroups
  ),
  used as materialized (
    select k.key,
           count(*)::int as running,
           (count(*) filter (where j.status = 'QUEUED'))::int as open
      from ${tenant}.jobs j
     cross join lateral unnest(j.limit_keys[2:]) as k(key)
     where ${isInUse('j.')}
     group by k.key
  ),
  rooms as materialized (
    select k.key,
           l.seconds,
           l.burst,
           greatest(b.full_at, now()) as full_at,
           l.concurrency - coalesce(u.running, 0) as slots,
           least(
             l.burst - coalesce(u.open, 0),
             floor(l.burst - greatest(0, extract(epoch from b.full_at - now())) / l.seconds + 1e-6)
           )::int as tokens
      from (select distinct unnest(keys[2:]) as key from groups) as k
      left join limits l on l.name = split_part(k.key, ':', 1)
      left join ${tenant}.limit_buckets b on b.key = k.key
      left join used u on u.key = k.key
  ),
  group_rooms as materialized (
    select g.keys, min(least(r.slots, r.tokens, 1000000)) as room
      from groups g
     cross join lateral unnest(g.keys[2:]) as k(key)
      join rooms r on r.key = k.key
     group by g.keys
  ),
  candidates as materialized (
    select c.*, g.keys, row_number() over (partition by g.keys order by c.priority, c.created_at, c.id) as place
      from group_rooms g
     cross join lateral (
       select j.id, j.priority, j.created_at
         from ${tenant}.jobs j
        where ${isAtGate('j.')}
          and j.limit_keys = g.keys
        order by j.priority, j.created_at, j.id
        limit least(g.room, greatest(1, :room::int / (select count(*) from group_rooms where room > 0)))
          for update skip locked
     ) c
     where g.room > 0
  ),
  fitting as (
    select n.id
      from (
        select c.id,
               k.key,
               row_number() over (partition by k.key order by c.place, c.priority, c.created_at, c.id) as place
          from candidates c
         cross join lateral unnest(c.keys[2:]) as k(key)
      ) as n
      join rooms r on r.key = n.key
     group by n.id
    having bool_and(n.place <= least(r.slots, r.tokens, 1000000))
  ),
  picked as (
    select c.id
      from candidates c
      join fitting f on f.id = c.id
     order by c.place, c.priority, c.created_at, c.id
     limit greatest(0, :room::int - (
             select count(*)
               from ${tenant}.jobs j
              where j.limit_keys is not null
                and not j.gated
                and j.status = 'QUEUED'
                and j.lane_head
                and j.limit_keys[1] in (select who from claimants)
           ))
  ),
  opened as (
    update ${tenant}.jobs j
       set gated = false,
           updated_at = now()
     where j.id = any(array(select id from picked))
       and ${isAtGate('j.')}
    returning j.limit_keys
  ),
  taken as materialized (
    select k.key, count(*)::int as tokens
      from opened o
     cross join lateral unnest(o.limit_keys[2:]) as k(key)
     group by k.key
  ),
  filled as materialized (
    select r.key,
           coalesce(r.full_at, now()) + coalesce(t.tokens, 0) * r.seconds * interval '1 second' as full_at,
           case when r.slots - coalesce(t.tokens, 0) <= 0
             then 'infinity'::float8
             else coalesce(
               extract(epoch from coalesce(r.full_at, now()) - now()) + (coalesce(t.tokens, 0) - r.burst + 1) * r.seconds, 0)
           end as wait_seconds,
           t.tokens
      from rooms r
      left join taken t on t.key = r.key
  ),
  stored as (
    insert into ${tenant}.limit_buckets (key, full_at)
    select key, full_at from filled where tokens > 0 and full_at is not null
    on conflict (key) do update set full_at = excluded.full_at
  )
  select (select count(*)::int from opened) as opened,
         (select (min(greatest(0, wait)) * 1000)::float8
            from (
              select max(f.wait_seconds) as wait
                from groups g
               cross join lateral unnest(g.keys[2:]) as k(key)
                join filled f on f.key = k.key
               group by g.keys
            ) as w
           where wait < 'infinity') as next_ms,
         (select jsonb_object_agg(who, keys) from walk where visited = :maxGroups and keys[1] = who) as positions`);

const dropFullStatement = statement(`delete from ${tenant}.limit_buckets where full_at < now() and key <> ''`);

/** Deletes the rows of buckets that are full again. */
export async function dropFullBuckets(db: Queryable, schema: Schema): Promise<void> {
  await dropFullStatement.query(db, schema, {});
}
