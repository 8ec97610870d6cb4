// The tables of one tenant. drizzle-kit reads this file and its re-exports to write migrations/tenant. Constraints
// restate the invariants; every index names the query it serves.
import { sql } from 'drizzle-orm';
import { check, date, index, integer, jsonb, numeric, primaryKey, text, uniqueIndex, uuid } from 'drizzle-orm/pg-core';
import { at, tenantTemplate } from './columns.ts';

export * from './tenant-attempts.ts';
export * from './tenant-jobs.ts';
export * from './tenant-log.ts';
export * from './tenant-questions.ts';
export { tenantTemplate };

export const schedules = tenantTemplate.table(
  'schedules',
  {
    id: uuid('id').primaryKey(),
    name: text('name').notNull(),
    cron: text('cron').notNull(),
    timezone: text('timezone').notNull().default('UTC'),
    /** The enqueue request of each firing. */
    job: jsonb('job').notNull(),
    missed: text('missed').notNull().default('latest'),
    pausedAt: at('paused_at'),
    pausedBy: text('paused_by'),
    nextAt: at('next_at'),
    lastFiredAt: at('last_fired_at'),
    lastJobId: uuid('last_job_id'),
    author: text('author'),
    createdAt: at('created_at').notNull().defaultNow(),
    updatedAt: at('updated_at').notNull().defaultNow(),
  },
  (t) => [
    uniqueIndex('schedules_name').on(t.name),
    check('schedules_missed', sql`missed in ('skip','latest','all')`),
    index('schedules_next_at').on(t.nextAt).where(sql`paused_at is null and next_at is not null`),
  ],
);

/** Events from outside, for jobs that wait for them now or will soon. This is not the event log. */
export const receivedEvents = tenantTemplate.table(
  'received_events',
  {
    id: uuid('id').primaryKey(),
    name: text('name').notNull(),
    /** The sender's id of the event. A repeated event is received once. */
    eventId: text('event_id'),
    data: jsonb('data').notNull(),
    receivedAt: at('received_at').notNull(),
    /** True if every job that was waiting for the event has received it. */
    deliveredAt: at('delivered_at'),
  },
  (t) => [
    uniqueIndex('received_events_name_event_id').on(t.name, t.eventId).where(sql`event_id is not null`),
    // Finds the event of a wait that begins after it: by name, or by the required data.
    index('received_events_name_received_at').on(t.name, t.receivedAt),
    index('received_events_data').using('gin', t.data.op('jsonb_path_ops')),
    // Events to deliver, oldest first.
    index('received_events_undelivered').on(t.receivedAt).where(sql`delivered_at is null`),
    // Retention.
    index('received_events_received_at').on(t.receivedAt),
  ],
);

/** Keys of unique jobs. The status of a job says whether it holds its key; see jobs/enqueue/unique-jobs.ts. */
export const uniqueKeys = tenantTemplate.table(
  'unique_keys',
  {
    type: text('type').notNull(),
    key: text('key').notNull(),
    jobId: uuid('job_id'),
    until: text('until').notNull().default('finished'),
    /** The end of the hold, for `until` in seconds. */
    heldUntil: at('held_until'),
    usedAt: at('used_at').notNull(),
  },
  (t) => [
    primaryKey({ columns: [t.type, t.key] }),
    check('unique_keys_until', sql`until in ('started','finished','seconds')`),
    // Retention.
    index('unique_keys_used_at').on(t.usedAt),
  ],
);

/** Bulk actions by filter. */
export const operations = tenantTemplate.table(
  'operations',
  {
    id: uuid('id').primaryKey(),
    action: text('action').notNull(),
    filter: jsonb('filter').notNull(),
    status: text('status').notNull().default('running'),
    author: text('author'),
    reason: text('reason'),
    matched: integer('matched').notNull().default(0),
    done: integer('done').notNull().default(0),
    failed: integer('failed').notNull().default(0),
    /** The last job id that was handled. A restarted operation continues after it. */
    cursor: uuid('cursor'),
    /** Null without a canary. `waiting`: the other jobs wait for the outcome of `canaryJobId`. */
    canary: text('canary'),
    canaryJobId: uuid('canary_job_id'),
    lockedUntil: at('locked_until'),
    createdAt: at('created_at').notNull().defaultNow(),
    finishedAt: at('finished_at'),
  },
  (t) => [
    check('operations_status', sql`status in ('running','finished','failed')`),
    check('operations_canary', sql`canary in ('waiting','succeeded','failed')`),
    index('operations_locked_until').on(t.lockedUntil).where(sql`status = 'running'`),
  ],
);

/** Total cost units of the tenant (queue '') or of one queue; its row lock makes admission atomic. */
export const capacities = tenantTemplate.table(
  'capacities',
  {
    queue: text('queue').primaryKey(),
    totalUnits: integer('total_units').notNull(),
    /** The waiting request that no later, smaller one may overtake. */
    reservedJobId: uuid('reserved_job_id'),
    reservedUntil: at('reserved_until'),
  },
  () => [check('capacities_total', sql`total_units > 0`)],
);

/** Usage of jobs per unit and day (UTC). Scope '' is the tenant; other scopes are `type:…` and `target:…`. */
export const usageDays = tenantTemplate.table(
  'usage_days',
  {
    day: date('day').notNull(),
    scope: text('scope').notNull(),
    unit: text('unit').notNull(),
    used: numeric('used').notNull(),
  },
  (t) => [primaryKey({ columns: [t.day, t.scope, t.unit] })],
);

/** Token buckets of rate limits, by key. A full bucket needs no row. The row '' is the lock of the gate. */
export const limitBuckets = tenantTemplate.table(
  'limit_buckets',
  {
    key: text('key').primaryKey(),
    /** The time at which the bucket is full again. */
    fullAt: at('full_at').notNull(),
  },
  (t) => [index('limit_buckets_full_at').on(t.fullAt)],
);

/**
 * One row per queue and minute, written by the statistics follower; histograms are counts per bound. Queue '' is the
 * whole tenant. Minute '-infinity' has the current counts instead of changes.
 */
export const statMinutes = tenantTemplate.table(
  'stat_minutes',
  {
    minute: at('minute').notNull(),
    queue: text('queue').notNull(),
    enqueued: integer('enqueued').notNull().default(0),
    started: integer('started').notNull().default(0),
    succeeded: integer('succeeded').notNull().default(0),
    failed: integer('failed').notNull().default(0),
    canceled: integer('canceled').notNull().default(0),
    leasesGranted: integer('leases_granted').notNull().default(0),
    leasesEnded: integer('leases_ended').notNull().default(0),
    leasesExpired: integer('leases_expired').notNull().default(0),
    /** Change of the number of jobs in each status within the minute: `{ "QUEUED": 3, "RUNNING": -1 }`. */
    deltas: jsonb('deltas').notNull().default({}),
    waitBuckets: integer('wait_buckets').array().notNull(),
    runBuckets: integer('run_buckets').array().notNull(),
    /**
     * For the whole tenant: the time since which the oldest claimable job waited, at the last roll-up in this minute;
     * infinity if none waited.
     */
    oldestAt: at('oldest_at'),
  },
  (t) => [
    // The minutes of one queue are adjacent, so a chart reads a range, whatever the number of queues.
    primaryKey({ columns: [t.queue, t.minute] }),
    // The current counts of all queues.
    index('stat_minutes_queue').on(t.queue).where(sql`minute = '-infinity'`),
  ],
);
