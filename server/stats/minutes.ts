// The rows of `stat_minutes`: what a group of events adds to them, and how they are stored. Only the
// follower writes them, one daemon at a time, so reading, adding and writing back is safe.

import type { Queryable } from '../database/database.ts';
import type { Schema } from '../database/identifiers.ts';
import { succeededStatuses } from '../jobs/model/states.ts';
import { addHistogram, emptyHistogram, type Histogram } from './histogram.ts';

/** The whole tenant, beside its queues: a tenant's chart must not read a thousand queues. */
export const allQueues = '';
/** Where the present counts are, instead of a minute's changes. */
export const currentCountsKey = '-infinity';

/** Events of one kind in one minute of one queue. */
export interface Group {
  minute: string;
  queue: string;
  type: string;
  from_status: string | null;
  to_status: string | null;
  expired: boolean;
  /** Places in the histogram. */
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

export type Minutes = Map<string, Minute>;

export function newMinutes(): Minutes {
  return new Map();
}

export function addGroup(minutes: Minutes, group: Group): void {
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

export async function saveMinutes(tx: Queryable, schema: Schema, minutes: Minutes): Promise<void> {
  const rows = [...minutes.values()];
  if (rows.length === 0) return;
  const stored = await tx.query<Minute>(
    `select queue, minute, ${counters.join(', ')}, deltas, wait_buckets, run_buckets from ${schema}.stat_minutes
      where (queue, minute) in (select * from unnest($1::text[], $2::timestamptz[]))`,
    [rows.map((row) => row.queue), rows.map((row) => row.minute)],
  );
  for (const row of stored) addStored(rowOf(minutes, row.queue, row.minute), row);
  const values = rows.map((row) =>
    row.minute === currentCountsKey
      ? { ...row, deltas: withoutZeros(row.deltas), wait_buckets: [], run_buckets: [] }
      : row,
  );
  await tx.query(
    `insert into ${schema}.stat_minutes (queue, minute, ${counters.join(', ')}, deltas, wait_buckets, run_buckets)
     select queue, minute, ${counters.join(', ')}, deltas, wait_buckets, run_buckets
       from jsonb_to_recordset($1::jsonb) as g(queue text, minute timestamptz, ${counters.map((name) => `${name} int`).join(', ')},
            deltas jsonb, wait_buckets int[], run_buckets int[])
     on conflict (queue, minute) do update set ${[...counters, 'deltas', 'wait_buckets', 'run_buckets'].map((name) => `${name} = excluded.${name}`).join(', ')}`,
    [JSON.stringify(values)],
  );
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
