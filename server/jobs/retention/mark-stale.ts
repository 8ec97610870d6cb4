// Marks finished jobs as stale. An index on `finished_at` would cost every job that finishes, so this follower reads
// the ends from the event log, delayed by the time that jobs stay fresh. Once a week it scans all jobs for ends that
// the log does not show, for example after a restore or a change made directly in SQL.

import type { Database, Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { withoutInvalidRows } from '../../database/invalid-rows.ts';
import { presentEpoch } from '../../database/log-epoch.ts';
import { statement, tenant } from '../../database/sql.ts';
import { isDataError } from '../../database/sql-errors.ts';
import { type FollowerStep, runFollowerStep } from '../../events/log/follower.ts';
import { beginning, type Position } from '../../events/log/position.ts';
import { insertEvents } from '../../events/log/record.ts';
import { toLogXid } from '../../events/log/transaction-ids.ts';
import { firstUuid } from '../../kernel/limits.ts';
import { statusIn, terminalStatuses } from '../model/states.ts';
import { isFinishedSql } from './delete-stale.ts';

export interface MarkStaleOptions {
  /** How long a job stays fresh after it finished. */
  afterSeconds: number;
  actor: string;
  /** The number of rows to read in one call: events or jobs. */
  limit: number;
}

export interface MarkedStale {
  /** The number of marked jobs, and their ids. */
  count: number;
  ids: string[];
  /** Jobs that Postgres refuses to update; the next scan tries again. */
  skipped: string[];
  /** False if there is more to read; call again. */
  complete: boolean;
  /** The last event that was read; undefined if another daemon is running the follower. */
  readTo: { xid: string; seq: string } | undefined;
}

export const staleFollower = 'retention';
export const secondsBetweenScans = 7 * 86_400;

/** The state that is stored with the follower. */
interface FollowerState {
  /** When the last scan of all jobs ended. */
  looked_at?: string;
  /** The last job that the scan in progress has read. */
  behind?: string;
}

const logStart = { xid: '0', seq: '0' };

/** Runs one short transaction: continues the log or the scan, and marks the jobs that finished long enough ago. */
export async function markStaleJobs(db: Database, schema: Schema, options: MarkStaleOptions): Promise<MarkedStale> {
  try {
    return await markInOneStep(db, schema, options, markJobs);
  } catch (error) {
    if (!isDataError(error)) throw error;
  }
  const skipped: string[] = [];
  const markOthers: typeof markJobs = (tx, _schema, ids) =>
    withoutInvalidRows(
      tx,
      ids,
      (some) => markJobs(tx, schema, some, options),
      (id) => void skipped.push(id),
    );
  return { ...(await markInOneStep(db, schema, options, markOthers)), skipped };
}

async function markInOneStep(
  db: Database,
  schema: Schema,
  options: MarkStaleOptions,
  markAll: typeof markJobs,
): Promise<MarkedStale> {
  let marked: MarkedStale = { count: 0, ids: [], skipped: [], complete: true, readTo: undefined };
  const { complete } = await runFollowerStep<FollowerState>(
    db,
    schema,
    staleFollower,
    {},
    async (tx, position, state) => {
      const now = await readNow(tx, schema);
      const read = isScanDue(state, now)
        ? await scanJobs(tx, schema, position, state, now, options)
        : await readEvents(tx, schema, position, state, now, options);
      const ids = read.ids.length === 0 ? [] : await markAll(tx, schema, read.ids, options);
      marked = {
        count: ids.length,
        ids: ids.map(({ id }) => id),
        skipped: [],
        complete: read.step.complete,
        readTo: read.step.position.page ?? logStart,
      };
      return read.step;
    },
  );
  return { ...marked, complete };
}

function isScanDue({ looked_at, behind }: FollowerState, { now }: Now): boolean {
  return behind !== undefined || !(Date.parse(looked_at ?? '') > Date.parse(now) - secondsBetweenScans * 1000);
}

interface Now {
  now: string;
  /** All earlier transactions of this database have ended. Those of other databases do not count. */
  first_in_progress: string;
  /** The first transaction id that has not been assigned. */
  next: string;
}

// Reads from the tenant's table, because in a cluster its node has its own transaction ids.
const nowStatement = statement(`
  select now() as now,
         (${presentEpoch(tenant)}) as epoch,
         pg_snapshot_xmax(pg_current_snapshot())::text as next,
         coalesce(
           (select x
              from pg_snapshot_xip(pg_current_snapshot()) as x
             where x::xid = any(array(
                     select backend_xid
                       from pg_stat_activity
                      where datname = current_database()
                        and backend_xid is not null))
             order by x
             limit 1),
           pg_snapshot_xmax(pg_current_snapshot()))::text as first_in_progress
    from ${tenant}.followers
   where name = :follower`);

async function readNow(tx: Queryable, schema: Schema): Promise<Now> {
  const [now] = await nowStatement.query<Now & { epoch: number }>(tx, schema, { follower: staleFollower });
  if (!now) throw new Error(`${schema} has no follower ${staleFollower}`);
  const { epoch, first_in_progress, next } = now;
  return { ...now, first_in_progress: toLogXid(first_in_progress, epoch), next: toLogXid(next, epoch) };
}

interface Ends {
  /** The number of events that were read, and the last of them. */
  read: number;
  xid: string | null;
  seq: string | null;
  /** The jobs that ended. */
  ids: string[] | null;
}

interface Read {
  /** The jobs that finished long enough ago, according to this read. */
  ids: string[];
  step: FollowerStep<FollowerState>;
}

/**
 * The second part of `due` is for events written while a clock was wrong. Waiting for such a time would stop the
 * follower. A window finds the first event that is too recent, in one pass. With a join, a planner that expects one event
 * would read all of them once for each.
 * @internal Exported for its test.
 */
export const eventsStatement = statement(`
  with log as materialized (
    select e.xid,
           e.seq,
           e.job_id,
           e.at < now() - :afterSeconds::float8 * interval '1 second' or e.at > now() + interval '1 day' as due,
           ${statusIn([...terminalStatuses, 'ERROR'], 'to_status')} as ended
      from ${tenant}.events e
     where (e.xid, e.seq) > (:xid::text::xid8, :seq::bigint)
       and e.xid < :firstInProgress::text::xid8
     order by e.xid, e.seq
     limit :limit
  ),
  old as (
    select *
      from (
        select *, bool_and(due) over (order by xid, seq rows unbounded preceding) as all_due
          from log
      ) as ordered
     where all_due
  )
  select count(*)::int as read,
         (array_agg(xid order by xid desc, seq desc))[1]::text as xid,
         (array_agg(seq order by xid desc, seq desc))[1]::text as seq,
         array_agg(distinct job_id) filter (where ended and job_id is not null) as ids
    from old`);

/** Reads up to the first event that is too recent, or that uncommitted events could still precede. */
async function readEvents(
  tx: Queryable,
  schema: Schema,
  position: Position,
  state: FollowerState,
  now: Now,
  { afterSeconds, limit }: MarkStaleOptions,
): Promise<Read> {
  const { xid, seq } = position.page ?? logStart;
  const [found] = await eventsStatement.query<Ends>(tx, schema, {
    xid,
    seq,
    afterSeconds,
    limit,
    firstInProgress: now.first_in_progress,
  });
  const { read = 0, xid: lastXid = null, seq: lastSeq = null, ids } = found ?? {};
  const hasRead = lastXid !== null && lastSeq !== null;
  // A database that was restored to an earlier time assigns the same transaction ids again.
  const ahead = BigInt(xid) >= BigInt(now.next);
  return {
    ids: ids ?? [],
    step: {
      position: ahead ? beginning : hasRead ? positionAt(lastXid, lastSeq) : position,
      state: ahead ? {} : state,
      handled: read,
      complete: read < limit && !ahead,
      moved: hasRead,
      ahead,
    },
  };
}

const scanStatement = statement(`
  select id,
         stale_at is null
           and ${isFinishedSql}
           and finished_at < now() - :afterSeconds::float8 * interval '1 second' as due
    from ${tenant}.jobs
   where id > :from
   order by id
   limit :limit`);

async function scanJobs(
  tx: Queryable,
  schema: Schema,
  position: Position,
  { looked_at, behind = firstUuid }: FollowerState,
  { now }: Now,
  { afterSeconds, limit }: MarkStaleOptions,
): Promise<Read> {
  const rows = await scanStatement.query<{ id: string; due: boolean }>(tx, schema, {
    from: behind,
    afterSeconds,
    limit,
  });
  const last = rows.at(-1);
  const done = rows.length < limit || last === undefined;
  const state: FollowerState = done
    ? { looked_at: now }
    : { ...(looked_at !== undefined && { looked_at }), behind: last.id };
  return {
    ids: rows.filter((row) => row.due).map((row) => row.id),
    step: {
      position: position.page ? position : positionAt(logStart.xid, logStart.seq),
      state,
      handled: rows.length,
      complete: false,
      moved: true,
      ahead: false,
    },
  };
}

/** The position of a reader that has read everything up to this event. */
function positionAt(xid: string, seq: string): Position {
  return { seen: beginning.seen, page: { until: beginning.seen, xid, seq } };
}

const markStatement = statement(`
  with old as (
    select id
      from ${tenant}.jobs
     where id = any(:ids::uuid[])
       and stale_at is null
       and ${isFinishedSql}
       and finished_at < now() - :afterSeconds::float8 * interval '1 second'
     order by id
       for update
  ),
  marked as (
    update ${tenant}.jobs
       set stale_at = now()
     where id = any(array(select id from old))
    returning id, target_id, status, attempt, lease_id
  ),
  recorded as (
    ${insertEvents(tenant, { source: 'marked', type: `'job.stale'`, actor: ':actor', from: 'status', to: 'status' })}
  )
  select id from marked`);

async function markJobs(
  tx: Queryable,
  schema: Schema,
  ids: readonly string[],
  { afterSeconds, actor }: MarkStaleOptions,
): Promise<{ id: string }[]> {
  return markStatement.query<{ id: string }>(tx, schema, { ids, afterSeconds, actor });
}
