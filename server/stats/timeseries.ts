// Time series from the roll-ups: one point per bucket, including empty ones. The last bucket is the current one by the
// database's clock.
import type { Queryable } from '../database/database.ts';
import type { Schema } from '../database/identifiers.ts';
import { type Statement, statement, statementVariants, tenant } from '../database/sql.ts';
import { type Status, unstartedStatuses } from '../jobs/model/states.ts';
import { problem } from '../kernel/errors.ts';
import { allQueues, currentCountsKey } from './read-counts.ts';
import { type CounterName, emptyHistogram, type Histogram, quantile } from './roll-up.ts';

export const metricNames = [
  'queued',
  'running',
  'leases_active',
  'enqueued',
  'started',
  'succeeded',
  'failed',
  'canceled',
  'leases_expired',
  'wait_p50',
  'wait_p95',
  'run_p50',
  'run_p95',
  'oldest_age',
] as const;
/** @internal */
export type MetricName = (typeof metricNames)[number];

/** Metrics whose value is a number of jobs at the end of each bucket. */
const levels: Partial<Record<MetricName, readonly Status[]>> = {
  queued: unstartedStatuses,
  running: ['RUNNING'],
  leases_active: ['RUNNING'],
};
/** Metrics in seconds: quantiles of the histograms. */
const quantiles: Partial<Record<MetricName, Quantile>> = {
  wait_p50: { column: 'wait_buckets', share: 0.5 },
  wait_p95: { column: 'wait_buckets', share: 0.95 },
  run_p50: { column: 'run_buckets', share: 0.5 },
  run_p95: { column: 'run_buckets', share: 0.95 },
};

export interface TimeseriesRequest {
  metric: MetricName;
  /** `5m`: a number and m, h or d. */
  bucket: string;
  range: string;
  queue?: string | undefined;
}

export interface Timeseries {
  metric: MetricName;
  bucket: string;
  points: { ts: string; value: number }[];
}

const secondsOf: Record<string, number> = { m: 60, h: 3600, d: 86_400 };
const maxRange = 31 * 86_400;
// More points than any chart has pixels for.
const maxPoints = 2000;

export async function readTimeseries(db: Queryable, schema: Schema, request: TimeseriesRequest): Promise<Timeseries> {
  const frame = parseFrame(request);
  const { queue } = frame;
  const level = levels[request.metric];
  const part = quantiles[request.metric];
  if (request.metric === 'oldest_age' && queue !== allQueues) {
    throw problem('INVALID_FIELD', 'query.queue: oldest_age is available for the whole tenant only', {
      field: 'query.queue',
    });
  }
  const values = level
    ? await readLevels(db, schema, frame, level)
    : part
      ? await readQuantiles(db, schema, frame, part)
      : request.metric === 'oldest_age'
        ? await readOldestAges(db, schema, frame)
        : await readCounters(db, schema, frame, request.metric as CounterName);
  const points = values.map(({ at, value }) => ({ ts: `${new Date(at * 1000).toISOString().slice(0, 19)}Z`, value }));
  return { metric: request.metric, bucket: request.bucket, points };
}

/** The parameters of every statement here. */
type Frame = { queue: string; bucketSeconds: number; points: number };

interface Point {
  /** Start of the bucket, in seconds. */
  at: number;
  value: number;
}

function parseFrame({ bucket, range, queue = allQueues }: TimeseriesRequest): Frame {
  const bucketSeconds = parseSpan(bucket, 'query.bucket', 60, 86_400);
  const rangeSeconds = parseSpan(range, 'query.range', bucketSeconds, maxRange);
  const points = Math.ceil(rangeSeconds / bucketSeconds);
  if (points > maxPoints) {
    throw problem('INVALID_FIELD', `That would be ${points} points; at most ${maxPoints}: take a larger bucket.`, {
      field: 'query.bucket',
    });
  }
  return { queue, bucketSeconds, points };
}

function parseSpan(text: string, field: string, min: number, max: number): number {
  const match = /^(\d{1,6})([mhd])$/.exec(text);
  const seconds = match ? Number(match[1]) * (secondsOf[match[2] ?? ''] ?? 0) : 0;
  if (seconds >= min && seconds <= max) return seconds;
  const message = `must be a number and m, h or d, from ${min / 60}m to ${max / 86_400}d`;
  throw problem('INVALID_FIELD', `${field}: ${message}`, { field });
}

/** CTEs: `buckets` has one row per bucket of the frame, `minutes` the stored minutes with the start of their bucket. */
const frameSql = `with last as (
    select floor(extract(epoch from now()) / :bucketSeconds::float8) * :bucketSeconds::float8 as at
  ),
  buckets as (
    select l.at - n * :bucketSeconds::float8 as at
      from last l
     cross join generate_series(0, :points::int - 1) as n
  ),
  minutes as (
    select floor(extract(epoch from m.minute) / :bucketSeconds::float8) * :bucketSeconds::float8 as at, m.*
      from ${tenant}.stat_minutes m
     where m.queue = :queue
       and m.minute >= (select to_timestamp(min(at)) from buckets)
  )`;

const counterStatement = statementVariants<{ counter: CounterName }>(
  ({ counter }) => `
  ${frameSql}
  select b.at::float8 as at,
         coalesce(sum(m.${counter}), 0)::float8 as value
    from buckets b
    left join minutes m on m.at = b.at
   group by b.at
   order by b.at`,
);

function readCounters(db: Queryable, schema: Schema, frame: Frame, counter: CounterName): Promise<Point[]> {
  return counterStatement({ counter }).query<Point>(db, schema, frame);
}

function levelStatement(of: readonly Status[]): Statement {
  const sum = of.map((status) => `coalesce((deltas ->> '${status}')::int, 0)`).join(' + ');
  return statement(`
  ${frameSql},
  changes as (
    select at, sum(${sum}) as change
      from minutes
     group by at
  ),
  current as (
    select ${sum} as total
      from ${tenant}.stat_minutes
     where queue = :queue
       and minute = '${currentCountsKey}'
  )
  select b.at::float8 as at,
         coalesce(c.change, 0)::float8 as change,
         coalesce((select total from current), 0)::float8 as total
    from buckets b
    left join changes c on c.at = b.at
   order by b.at desc`);
}

/** Computed backwards: the count at the end of a bucket is the current count minus all later changes. */
async function readLevels(db: Queryable, schema: Schema, frame: Frame, of: readonly Status[]): Promise<Point[]> {
  const rows = await levelStatement(of).query<{ at: number; change: number; total: number }>(db, schema, frame);
  let level = rows[0]?.total ?? 0;
  const points = rows.map((row) => {
    const point = { at: row.at, value: Math.max(0, level) };
    level -= row.change;
    return point;
  });
  return points.reverse();
}

interface Quantile {
  column: 'wait_buckets' | 'run_buckets';
  share: number;
}

const histogramStatement = statementVariants<Pick<Quantile, 'column'>>(({ column }) => {
  // One sum per position, because unnesting the histograms of a week would make half a million rows.
  const sums = emptyHistogram().map((_, place) => `coalesce(sum(m.${column}[${place + 1}]), 0)::int`);
  return `
  ${frameSql}
  select b.at::float8 as at,
         array[${sums.join(', ')}] as counts
    from buckets b
    left join minutes m on m.at = b.at
   group by b.at
   order by b.at`;
});

async function readQuantiles(db: Queryable, schema: Schema, frame: Frame, part: Quantile): Promise<Point[]> {
  const { column } = part;
  const rows = await histogramStatement({ column }).query<{ at: number; counts: Histogram }>(db, schema, frame);
  return rows.map(({ at, counts }) => ({ at, value: quantile(counts, part.share) }));
}

const oldestAgeStatement = statement(`
  with last as (
    select floor(extract(epoch from now()) / :bucketSeconds::float8) * :bucketSeconds::float8 as at
  ),
  buckets as (
    select l.at - n * :bucketSeconds::float8 as at,
           least(to_timestamp(l.at - (n - 1) * :bucketSeconds::float8), now()) as ending
      from last l
     cross join generate_series(0, :points::int - 1) as n
  )
  select b.at::float8 as at,
         coalesce(greatest(0, extract(epoch from b.ending - s.oldest_at)), 0)::float8 as value
    from buckets b
    left join lateral (
      select m.oldest_at
        from ${tenant}.stat_minutes m
       where m.queue = :queue
         and m.minute < b.ending
         and m.minute > '-infinity'
         and m.oldest_at is not null
       order by m.minute desc
       limit 1
    ) s on s.oldest_at <> 'infinity'
   order by b.at`);

/** The wait of the oldest claimable job at the end of each bucket, from the last sample before. */
function readOldestAges(db: Queryable, schema: Schema, frame: Frame): Promise<Point[]> {
  return oldestAgeStatement.query<Point>(db, schema, frame);
}
