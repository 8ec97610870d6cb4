// The tables of one tenant that hold the phases and leases of its jobs.
import { sql } from 'drizzle-orm';
import {
  boolean,
  check,
  index,
  integer,
  json,
  jsonb,
  primaryKey,
  real,
  smallint,
  text,
  uuid,
} from 'drizzle-orm/pg-core';
import { at, tenantTemplate } from './columns.ts';

/**
 * The phases of a job, and the durable calls of its `run` in the order in which they were made. Deleted with the job.
 * There is no foreign key, because it would cost every write of a job, and all writes here are fenced by the job's row.
 */
export const phases = tenantTemplate.table(
  'phases',
  {
    jobId: uuid('job_id').notNull(),
    name: text('name').notNull(),
    /** `phase` for a definition with phases; other kinds are durable calls of `run`. */
    kind: text('kind').notNull().default('phase'),
    position: smallint('position').notNull(),
    /** The call was made while another durable call of the run was open, so the order of such calls may change. */
    parallel: boolean('parallel').notNull().default(false),
    status: text('status').notNull().default('pending'),
    progress: real('progress').notNull().default(0),
    message: text('message'),
    result: jsonb('result'),
    error: jsonb('error'),
    attempt: integer('attempt').notNull().default(0),
    startedAt: at('started_at'),
    finishedAt: at('finished_at'),
    /** The end of a sleep, or the latest end of a wait. */
    waitsUntil: at('waits_until'),
    /**
     * For a wait for an event from outside: its name, the data it must contain, and one key of that data for the index.
     */
    eventName: text('event_name'),
    match: jsonb('match'),
    matchKey: text('match_key'),
    /** The row of `received_events` that ended the wait. */
    receivedId: uuid('received_id'),
  },
  (t) => [
    primaryKey({ columns: [t.jobId, t.name] }),
    // The waits for an event that has arrived, in an order, so that a batch reads only its own.
    index('phases_event_name_match_key_job_id')
      .on(t.eventName, t.matchKey, t.jobId)
      .where(sql`event_name is not null and status in ('pending','running')`),
    check('phases_kind', sql`kind in ('phase','step','sleep','event','children','question')`),
    // Durable calls that wait for children. A job may not have stored yet that it waits.
    index('phases_children').on(t.jobId).where(sql`kind = 'children' and status = 'pending'`),
    check('phases_status', sql`status in ('pending','running','completed','partial','failed','skipped','cancelled')`),
  ],
);

/**
 * One row per claim (a batch of jobs of one daemon shares a lease id) or per remote lease.
 * Renewal touches this row only, so that a heartbeat never rewrites a job.
 */
export const leases = tenantTemplate.table(
  'leases',
  {
    id: uuid('id').primaryKey(),
    /** `local`: a daemon's batch; `claim`: a remote claim before its lease; `remote`: a granted remote lease. */
    kind: text('kind').notNull(),
    owner: text('owner').notNull(),
    jobIds: uuid('job_ids').array().notNull(),
    queue: text('queue'),
    costUnits: integer('cost_units').notNull().default(0),
    ttlSeconds: real('ttl_seconds').notNull(),
    state: text('state').notNull().default('ACTIVE'),
    grantedAt: at('granted_at').notNull().defaultNow(),
    lastHeartbeatAt: at('last_heartbeat_at').notNull().defaultNow(),
    expiresAt: at('expires_at').notNull(),
    releasedAt: at('released_at'),
    releaseStatus: text('release_status'),
    metrics: jsonb('metrics'),
    releaseAnswer: json('release_answer'),
  },
  (t) => [
    check('leases_kind', sql`kind in ('local','claim','remote')`),
    check('leases_state', sql`state in ('ACTIVE','EXPIRED','RELEASED')`),
    // The sweeper and the capacity sum read the active leases. expires_at is not in the index, so that renewals are
    // HOT.
    index('leases_active_id').on(t.id).where(sql`state = 'ACTIVE'`),
    index('leases_released_at').on(t.releasedAt).where(sql`released_at is not null`),
    // Leases that remote workers released recently, among the many of daemons.
    index('leases_released_at_remote').on(t.releasedAt).where(sql`released_at is not null and kind <> 'local'`),
  ],
);
