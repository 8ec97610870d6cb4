// /api/stats, read from roll-ups: current counts, time series, attempts whose lease expired.
import { z } from 'zod';
import { statuses } from '../../jobs/model/states.ts';
import { readZombies, type Zombie } from '../../stats/attention.ts';
import { readTenantWorkers } from '../../stats/lease-holders.ts';
import { readCounts, readOldestSeconds, readQueueCounts, readSnapshot } from '../../stats/read-counts.ts';
import { rollUpNow } from '../../stats/roll-up.ts';
import { metricNames, readTimeseries } from '../../stats/timeseries.ts';
import { integerQuery, paged, pageOf, pageQuery, pageSchema } from '../request/paging.ts';
import { RouteGroup } from '../route.ts';
import { toApi } from '../to-api.ts';

const count = z.int().min(0);
const queueQuery = z.string().min(1).max(200).optional().describe('Only this queue.');
const countsSchema = z
  .strictObject(Object.fromEntries(statuses.map((status) => [status, count])))
  .meta({ id: 'StatusCounts' });
const snapshotSchema = z.strictObject({
  jobs: z.strictObject({
    queued: count.describe('Jobs that are PENDING or QUEUED.'),
    running: count,
    failed_last_24h: count,
  }),
  leases: z.strictObject({ active: count, expired_last_24h: count }),
  oldest_queued_seconds: z.number().describe('How long the oldest claimable job has waited; 0 if there is none.'),
});
const zombieSchema = z.strictObject({
  job_id: z.string(),
  target_id: z.string().nullable(),
  at: z.string(),
  attempt: z.int().nullable(),
  lease_id: z.string().nullable(),
  owner: z.string().nullable().describe('The holder of the lease.'),
  became_of: z.enum(['retried', 'failed']),
});

const timeseriesQuery = z.strictObject({
  metric: z.enum(metricNames),
  bucket: z.string().max(8).default('5m').describe('A number and m, h or d, from 1m to 1d.'),
  range: z.string().max(8).default('24h').describe('Up to 31d, and to 2000 points.'),
  queue: queueQuery,
});
const timeseriesSchema = z.strictObject({
  metric: z.enum(metricNames),
  bucket: z.string(),
  points: z.array(z.strictObject({ ts: z.string(), value: z.number() })),
});

/** Used by /api/stats and by the scheduler API. */
export function addTimeseriesRoute(group: RouteGroup, path: `/${string}`): void {
  group.route({
    method: 'get',
    path,
    summary: 'One metric over time, one point per bucket',
    description:
      'queued, running and leases_active are numbers at the end of each bucket; wait, run and oldest_age are seconds; all others count within the bucket.',
    access: 'read',
    query: timeseriesQuery,
    answers: { 200: timeseriesSchema },
    handle: async ({ tenant, db, query }) => {
      await rollUpNow(db, tenant.schema);
      return readTimeseries(db, tenant.schema, query);
    },
  });
}

export function statsRoutes(): RouteGroup {
  const group = new RouteGroup('Statistics');
  group.route({
    method: 'get',
    path: '/api/stats/snapshot',
    summary: 'Current counts of the tenant, or of one queue',
    access: 'read',
    query: z.strictObject({ queue: queueQuery }),
    answers: { 200: snapshotSchema },
    handle: async ({ tenant, db, query }) => {
      await rollUpNow(db, tenant.schema);
      return {
        ...(await readSnapshot(db, tenant.schema, query.queue)),
        oldest_queued_seconds: await readOldestSeconds(db, tenant.schema, query.queue),
      };
    },
  });
  addTimeseriesRoute(group, '/api/stats/timeseries');
  group.route({
    method: 'get',
    path: '/api/stats/jobs',
    summary: 'Jobs by status',
    access: 'read',
    query: z.strictObject({ queue: queueQuery }),
    answers: { 200: z.strictObject({ counts: countsSchema, total: count }) },
    handle: async ({ tenant, db, query }) => {
      await rollUpNow(db, tenant.schema);
      const counts = await readCounts(db, tenant.schema, query.queue);
      return { counts, total: Object.values(counts).reduce((sum, n) => sum + n, 0) };
    },
  });
  group.route({
    method: 'get',
    path: '/api/stats/queues',
    summary: 'Jobs by queue and status',
    access: 'read',
    query: z.strictObject(pageQuery()),
    answers: { 200: pageSchema('queues', z.strictObject({ queue: z.string(), counts: countsSchema })) },
    problems: ['INVALID_CURSOR'],
    handle: async ({ tenant, db, query }) => {
      await rollUpNow(db, tenant.schema);
      const list = { name: `queues:${tenant.id}`, position: ['text'] } as const;
      const { rows, next_cursor } = await paged(list, query, async ([after], limit) => {
        const counts = await readQueueCounts(db, tenant.schema, { limit: limit + 1, ...(after && { after }) });
        return pageOf(counts, limit, (last) => [last.queue]);
      });
      return { queues: rows, next_cursor };
    },
  });
  group.route({
    method: 'get',
    path: '/api/stats/zombies',
    summary: 'Attempts of the last 24 hours whose lease expired, newest first',
    access: 'read',
    query: z.strictObject({ limit: integerQuery(1, 500).optional() }),
    answers: { 200: z.strictObject({ zombies: z.array(zombieSchema) }) },
    handle: async ({ tenant, db, query }) => ({
      zombies: (await readZombies(db, tenant.schema, query.limit ?? 50)).map(zombieToApi),
    }),
  });
  group.route({
    method: 'get',
    path: '/api/workers',
    summary: "Who runs the tenant's jobs now, and which of them a drain will interrupt",
    description: 'The end of a job is estimated from its progress; without progress it is not known.',
    access: 'read',
    answers: { 200: z.strictObject({ workers: z.array(tenantWorkerSchema) }) },
    handle: async ({ tenant, db }) => ({ workers: await readTenantWorkers(db, tenant.schema) }),
  });
  return group;
}

const isoTime = z.iso.datetime({ offset: true });
const tenantWorkerSchema = z
  .strictObject({
    id: z.string().describe('`lease_owner` of its jobs.'),
    kind: z.enum(['daemon', 'remote']),
    running: z.int().describe('Jobs that its leases hold.'),
    last_heartbeat_at: isoTime,
    state: z.enum(['alive', 'draining', 'lost']).nullable().describe('Of daemons.'),
    drain_ends_at: isoTime.nullable().describe('When the drain pauses or requeues what still runs.'),
    draining_jobs: z.array(
      z.strictObject({
        job_id: z.uuid(),
        type: z.string(),
        target_id: z.string().nullable(),
        started_at: isoTime,
        progress: z.number().nullable(),
        expected_at: isoTime.nullable().describe('When it ends if it continues at its pace.'),
        misses_drain: z.boolean().nullable().describe('Null: it has reported no progress.'),
      }),
    ),
  })
  .meta({ id: 'TenantWorker' });

function zombieToApi(zombie: Zombie): z.input<typeof zombieSchema> {
  return toApi(zombieSchema, zombie, { became_of: zombie.outcome });
}
