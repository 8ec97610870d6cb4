// /api/scheduler/stats: capacity, current counts and time series for remote workers.
import { z } from 'zod';
import { readCapacitySnapshot, readQueueUnits } from '../../../scheduler/capacity.ts';
import { readSnapshot } from '../../../stats/read-counts.ts';
import { rollUpNow } from '../../../stats/roll-up.ts';
import { RouteGroup } from '../../route.ts';
import { addTimeseriesRoute } from '../stats.ts';

const snapshotSchema = z
  .strictObject({
    capacity: z.strictObject({
      total: z
        .int()
        .nullable()
        .describe('Of the tenant, else the sum of its queues; null: no capacity is set, nothing is denied.'),
      used: z.int(),
      reserved: z.int().describe('Units reserved for a waiting job.'),
    }),
    jobs: z.strictObject({ queued: z.int(), running: z.int(), failed_last_24h: z.int() }),
    leases: z.strictObject({ active: z.int(), expired_last_24h: z.int() }),
  })
  .meta({ id: 'SchedulerSnapshot' });

export function schedulerStatsRoutes(): RouteGroup {
  const group = new RouteGroup('Scheduler');
  group.route({
    method: 'get',
    path: '/api/scheduler/stats/snapshot',
    summary: 'Capacity, jobs and leases now',
    description: 'Jobs and leases are those of /api/stats/snapshot.',
    access: 'read',
    answers: { 200: snapshotSchema },
    handle: async ({ tenant, db }) => {
      await rollUpNow(db, tenant.schema);
      return {
        capacity: await readCapacitySnapshot(db, tenant.schema),
        ...(await readSnapshot(db, tenant.schema)),
      };
    },
  });
  addTimeseriesRoute(group, '/api/scheduler/stats/timeseries');
  group.route({
    method: 'get',
    path: '/api/scheduler/stats/capacity',
    summary: 'Cost units of each queue: used, and requested by jobs that could start',
    access: 'read',
    answers: { 200: z.strictObject({ queues: z.array(queueUnitsSchema) }) },
    handle: async ({ tenant, db }) => ({ queues: await readQueueUnits(db, tenant.schema) }),
  });
  return group;
}

const queueUnitsSchema = z
  .strictObject({
    queue: z.string(),
    total: z.int().nullable().describe('Null: the queue has no capacity of its own.'),
    used: z.number(),
    requested: z.number().describe('Of jobs that could start now if there were room.'),
    waiting: z.int().describe('How many jobs request them.'),
    reserved: z.int().describe('Units kept for a waiting job.'),
  })
  .meta({ id: 'QueueUnits' });
