// The statistics follower: converts changes of status to counts per queue and minute (`stat_minutes`), and keeps the
// current number of jobs in each status. Postgres groups the events, and only groups are sent. Only the follower writes
// these rows, one daemon at a time, so reading, adding and writing back is safe.
import type { Database, Queryable } from '../database/database.ts';
import type { Schema } from '../database/identifiers.ts';
import { statement, tenant } from '../database/sql.ts';
import { type FollowResult, followSelection } from '../events/log/follower.ts';
import { hasCodeSql } from '../jobs/model/job-errors.ts';
import { succeededStatuses } from '../jobs/model/states.ts';
import { Problem } from '../kernel/errors.ts';
import { allQueues, currentCountsKey, selectOldestRunAt } from './read-counts.ts';

// A transaction of well under a second, so that a burst neither holds a connection nor causes bloat.
const eventsPerStep = 10_000;

export async function rollUpOnce(db: Database, schema: Schema, limit = eventsPerStep): Promise<FollowResult> {
  const selection = { name: 'statistics', limit, ctes: groupEvents, from: 'groups', parameters: { boundsSeconds } };
  return followSelection<Group>(db, schema, selection, {
    async handle(tx, groups) {
      const minutes: Minutes = new Map();
      for (const group of groups) addGroup(minutes, group);
      await saveMinutes(tx, schema, minutes);
      if (groups.length > 0) await sampleOldest(tx, schema);
    },
  });
}

// A reader does not wait for the backlog of a burst, which the follower handles in the background.
const stepsForReader = 3;

/** Rolls up all events written so far, so that a client sees the effect of its last request. */
export async function rollUpNow(db: Database, schema: Schema): Promise<void> {
  try {
    for (let step = 0; step < stepsForReader; step++) {
      if ((await rollUpOnce(db, schema)).complete) return;
    }
  } catch (error) {
    // Another daemon counted the same events first.
    if (!(error instanceof Problem) || error.code !== 'CONFLICT') throw error;
  }
}

// The wait and run times of a job are computed from its row, unless the row has changed since.
const groupEvents = `changes as materialized (
    select at, type, job_id, from_status, to_status, data
      from log
     where until is null
       and job_id is not null
       and from_status is distinct from to_status
  ),
  jobs_of_changes as materialized (
    select id, queue, run_at, started_at
      from ${tenant}.jobs
     where id = any(array(select job_id from changes))
  ),
  timed as (
    select date_trunc('minute', c.at) as minute,
           coalesce(j.queue, c.data ->> 'queue', 'default') as queue,
           c.type,
           c.from_status,
           c.to_status,
           coalesce(c.type = 'job.lease_expired' or ${hasCodeSql('LEASE_EXPIRED', `c.data -> 'error'`)}, false) as expired,
           case
             when c.to_status = 'RUNNING' and j.run_at <= c.at
             then width_bucket(extract(epoch from c.at - j.run_at)::float8, :boundsSeconds::float8[])
           end as wait,
           case
             when c.from_status = 'RUNNING' and j.started_at <= c.at
             then width_bucket(extract(epoch from c.at - j.started_at)::float8, :boundsSeconds::float8[])
           end as run
      from changes c
      left join jobs_of_changes j on j.id = c.job_id
  ),
  groups as (
    select minute, queue, type, from_status, to_status, expired, wait, run, count(*)::int as count
      from timed
     group by 1, 2, 3, 4, 5, 6, 7, 8
  )`;

/** Events of one kind in one minute of one queue. */
interface Group {
  minute: string;
  queue: string;
  type: string;
  from_status: string | null;
  to_status: string | null;
  expired: boolean;
  /** Indexes into the histogram. */
  wait: number | null;
  run: number | null;
  count: number;
}

const counters = [
  'enqueued',
  'started',
  'succeeded',
  'failed',
  'canceled',
  'leases_granted',
  'leases_ended',
  'leases_expired',
] as const;
export type CounterName = (typeof counters)[number];

interface Minute extends Record<CounterName, number> {
  queue: string;
  minute: string;
  deltas: Record<string, number>;
  wait_buckets: Histogram;
  run_buckets: Histogram;
}

type Minutes = Map<string, Minute>;

function addGroup(minutes: Minutes, group: Group): void {
  for (const queue of [allQueues, group.queue]) {
    addTo(rowOf(minutes, queue, group.minute), group);
    addDeltas(rowOf(minutes, queue, currentCountsKey), group);
  }
}

function rowOf(minutes: Minutes, queue: string, minute: string): Minute {
  const key = `${minute} ${queue}`;
  let row = minutes.get(key);
  if (row === undefined) {
    const zeros = Object.fromEntries(counters.map((name) => [name, 0])) as Record<CounterName, number>;
    row = { ...zeros, queue, minute, deltas: {}, wait_buckets: emptyHistogram(), run_buckets: emptyHistogram() };
    minutes.set(key, row);
  }
  return row;
}

function addTo(row: Minute, group: Group): void {
  const { count, from_status: from, to_status: to } = group;
  addDeltas(row, group);
  if (group.type === 'job.enqueued') row.enqueued += count;
  if (to === 'RUNNING') {
    row.started += count;
    row.leases_granted += count;
  }
  if (from === 'RUNNING') row.leases_ended += count;
  if (group.expired) row.leases_expired += count;
  if ((succeededStatuses as readonly (string | null)[]).includes(to)) row.succeeded += count;
  if (to === 'ERROR') row.failed += count;
  if (to === 'CANCELED') row.canceled += count;
  if (group.wait !== null) row.wait_buckets[group.wait] = (row.wait_buckets[group.wait] ?? 0) + count;
  if (group.run !== null) row.run_buckets[group.run] = (row.run_buckets[group.run] ?? 0) + count;
}

function addDeltas(row: Minute, { count, from_status: from, to_status: to }: Group): void {
  if (from !== null) row.deltas[from] = (row.deltas[from] ?? 0) - count;
  if (to !== null) row.deltas[to] = (row.deltas[to] ?? 0) + count;
}

const minuteColumns = [...counters, 'deltas', 'wait_buckets', 'run_buckets'];
const readMinutes = statement(`
  select queue, minute, ${minuteColumns.join(', ')}
    from ${tenant}.stat_minutes
   where (queue, minute) in (select * from unnest(:queues::text[], :minutes::timestamptz[]))`);
const writeMinutes = statement(`
  insert into ${tenant}.stat_minutes (queue, minute, ${minuteColumns.join(', ')})
  select queue, minute, ${minuteColumns.join(', ')}
    from jsonb_to_recordset(:rows::jsonb) as g(
           queue text,
           minute timestamptz,
           ${counters.map((name) => `${name} int`).join(', ')},
           deltas jsonb,
           wait_buckets int[],
           run_buckets int[])
  on conflict (queue, minute) do update set
    ${minuteColumns.map((name) => `${name} = excluded.${name}`).join(', ')}`);

async function saveMinutes(tx: Queryable, schema: Schema, minutes: Minutes): Promise<void> {
  const rows = [...minutes.values()];
  if (rows.length === 0) return;
  const stored = await readMinutes.query<Minute>(tx, schema, {
    queues: rows.map((row) => row.queue),
    minutes: rows.map((row) => row.minute),
  });
  for (const row of stored) addStored(rowOf(minutes, row.queue, row.minute), row);
  const values = rows.map((row) =>
    row.minute === currentCountsKey
      ? { ...row, deltas: withoutZeros(row.deltas), wait_buckets: [], run_buckets: [] }
      : row,
  );
  await writeMinutes.query(tx, schema, { rows: JSON.stringify(values) });
}

const writeOldest = statement(`
  with sample as (
    select date_trunc('minute', now()) as minute,
           coalesce((${selectOldestRunAt}), 'infinity') as oldest_at
  )
  insert into ${tenant}.stat_minutes (queue, minute, wait_buckets, run_buckets, oldest_at)
  select :allQueues, minute, '{}', '{}', oldest_at
    from sample
  on conflict (queue, minute) do update set
    oldest_at = excluded.oldest_at`);

/**
 * Stores the time since which the oldest claimable job waits. While nothing happens, it stays the oldest, so a chart
 * can compute its age at any later time.
 */
async function sampleOldest(tx: Queryable, schema: Schema): Promise<void> {
  await writeOldest.query(tx, schema, { allQueues, queue: allQueues });
}

function addStored(row: Minute, stored: Minute): void {
  for (const name of counters) row[name] += stored[name];
  for (const [status, count] of Object.entries(stored.deltas)) row.deltas[status] = (row.deltas[status] ?? 0) + count;
  addHistogram(row.wait_buckets, stored.wait_buckets);
  addHistogram(row.run_buckets, stored.run_buckets);
}

function withoutZeros(deltas: Record<string, number>): Record<string, number> {
  return Object.fromEntries(Object.entries(deltas).filter(([, count]) => count !== 0));
}

// Histograms of durations: counts per bound, so that minutes can be added up to hours and days and still yield
// quantiles. Bounds from a millisecond to a week grow by half, so a quantile is off by at most a quarter.
const boundsSeconds: readonly number[] = Array.from({ length: 51 }, (_, i) => 0.001 * 1.5 ** i);

/** One count below each bound and one above the last; `width_bucket(seconds, bounds)` is the index. */
export type Histogram = number[];

export function emptyHistogram(): Histogram {
  return new Array<number>(boundsSeconds.length + 1).fill(0);
}

function addHistogram(into: Histogram, from: readonly number[]): void {
  for (let i = 0; i < into.length; i++) into[i] = (into[i] ?? 0) + (from[i] ?? 0);
}

/** Returns the duration that `share` of all values are below; 0 if there are none. */
export function quantile(histogram: readonly number[], share: number): number {
  const total = histogram.reduce((sum, count) => sum + count, 0);
  if (total === 0) return 0;
  const wanted = share * total;
  let below = 0;
  for (const [place, count] of histogram.entries()) {
    if (count > 0 && below + count >= wanted) return interpolate(place, (wanted - below) / count);
    below += count;
  }
  return boundsSeconds.at(-1) ?? 0;
}

function interpolate(place: number, part: number): number {
  const low = place === 0 ? 0 : (boundsSeconds[place - 1] ?? 0);
  // The last bucket has no upper bound.
  const high = boundsSeconds[place] ?? low;
  return Number((low + (high - low) * part).toPrecision(4));
}
