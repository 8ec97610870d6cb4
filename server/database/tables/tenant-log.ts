// The tables of one tenant that record history: events, their followers, logs, webhook deliveries.
import { sql } from 'drizzle-orm';
import { check, index, integer, jsonb, primaryKey, text, uniqueIndex, uuid } from 'drizzle-orm/pg-core';
import { at, bigintText, bytea, tenantTemplate, xid8 } from './columns.ts';

/**
 * Append-only. (xid, seq) only grows, so a reader knows from a snapshot which events it has not seen. `xid` is the id
 * of the transaction, with the epoch of the log in its upper bits; the default is for writers that do not set it.
 */
export const events = tenantTemplate.table(
  'events',
  {
    xid: xid8('xid').notNull().default(sql`"tenant_template".log_transaction_id()`),
    seq: bigintText('seq').notNull().generatedAlwaysAsIdentity(),
    at: at('at').notNull().defaultNow(),
    type: text('type').notNull(),
    jobId: uuid('job_id'),
    targetId: text('target_id'),
    fromStatus: text('from_status'),
    toStatus: text('to_status'),
    attempt: integer('attempt'),
    leaseId: uuid('lease_id'),
    /**
     * The author: `key:<id>`, `user:<name>`, `worker:<id>`, `sweeper:<daemon>`, `schedule:<name>`, `host`,
     * `sql:<role>`.
     */
    actor: text('actor').notNull(),
    data: jsonb('data'),
  },
  (t) => [
    primaryKey({ columns: [t.xid, t.seq] }),
    // The history of one job.
    index('events_job_id_seq').on(t.jobId, t.seq).where(sql`job_id is not null`),
  ],
);

/** The table and server of the log in each epoch. A row that was copied has other system columns. */
export const logEpochs = tenantTemplate.table('log_epochs', {
  epoch: integer('epoch').primaryKey(),
  /** `tableoid` and `xmin` of this row. */
  relation: bigintText('relation').notNull(),
  writtenBy: xid8('written_by').notNull(),
  beganAt: at('began_at').notNull().defaultNow(),
});

/** Durable cursors of the followers of the event log: webhooks, seals, statistics. */
export const followers = tenantTemplate.table('followers', {
  name: text('name').primaryKey(),
  /** The events that were read, as a pg_snapshot. */
  snapshot: text('snapshot').notNull(),
  state: jsonb('state').notNull().default({}),
  updatedAt: at('updated_at').notNull().defaultNow(),
});

/** Events that a follower could not process and skipped. */
export const setAsideEvents = tenantTemplate.table(
  'set_aside_events',
  {
    follower: text('follower').notNull(),
    eventXid: xid8('event_xid').notNull(),
    eventSeq: bigintText('event_seq').notNull(),
    /** The SQLSTATE and the message of Postgres. */
    code: text('code').notNull(),
    error: text('error').notNull(),
    setAsideAt: at('set_aside_at').notNull().defaultNow(),
  },
  (t) => [primaryKey({ columns: [t.follower, t.eventXid, t.eventSeq] })],
);

/**
 * A chain of seals: blocks of events with a hash per row, so that a changed or missing row can be named, and records of
 * the rows that retention removed.
 */
export const eventSeals = tenantTemplate.table(
  'event_seals',
  {
    number: bigintText('number').primaryKey(),
    snapshot: text('snapshot').notNull(),
    /** `xid:seq` of each sealed event, in sealed order. */
    eventKeys: text('event_keys').array().notNull(),
    /** 16 bytes for each of them. */
    eventHashes: bytea('event_hashes').notNull(),
    previousHash: bytea('previous_hash').notNull(),
    hash: bytea('hash').notNull(),
    sealedAt: at('sealed_at').notNull().defaultNow(),
    /** Set when retention removed the sealed rows. */
    prunedAt: at('pruned_at'),
    /** The seal that records the removal; 0 if it happened before removals were recorded. */
    prunedBy: bigintText('pruned_by'),
    kind: text('kind').notNull().default('events'),
    /** The hashed text. Null in seals of the first format, which hash their columns. Kept when the block is pruned. */
    record: text('record'),
    /**
     * For each event that began or ended a job: its position in the block (2 bytes) and a hash of the job's row (16
     * bytes).
     */
    jobHashes: bytea('job_hashes'),
  },
  () => [
    check('event_seals_kind', sql`kind in ('events','prune')`),
    // A daemon that does not record removals must not remove.
    check('event_seals_pruned_by', sql`pruned_at is null or pruned_by is not null`),
  ],
);

export const jobLogs = tenantTemplate.table(
  'job_logs',
  {
    jobId: uuid('job_id').notNull(),
    seq: bigintText('seq').notNull().generatedAlwaysAsIdentity(),
    at: at('at').notNull().defaultNow(),
    attempt: integer('attempt').notNull(),
    level: text('level').notNull().default('info'),
    message: text('message').notNull(),
    data: jsonb('data'),
  },
  (t) => [primaryKey({ columns: [t.jobId, t.seq] })],
);

export const webhookDeliveries = tenantTemplate.table(
  'webhook_deliveries',
  {
    id: uuid('id').primaryKey(),
    jobId: uuid('job_id').notNull(),
    eventXid: xid8('event_xid').notNull(),
    eventSeq: bigintText('event_seq').notNull(),
    eventType: text('event_type').notNull(),
    url: text('url').notNull(),
    body: jsonb('body').notNull(),
    state: text('state').notNull().default('pending'),
    attempts: integer('attempts').notNull().default(0),
    nextAt: at('next_at').notNull().defaultNow(),
    lockedUntil: at('locked_until'),
    lastStatus: integer('last_status'),
    lastError: text('last_error'),
    /** The last attempts: `[{ at, status, error }]`. */
    tries: jsonb('tries').notNull().default([]),
    createdAt: at('created_at').notNull().defaultNow(),
    finishedAt: at('finished_at'),
  },
  (t) => [
    check('webhook_deliveries_state', sql`state in ('pending','delivered','failed','disabled')`),
    // A follower that repeats a batch creates no second delivery.
    uniqueIndex('webhook_deliveries_event_xid_event_seq_url').on(t.eventXid, t.eventSeq, t.url),
    // Addresses that answered 410.
    index('webhook_deliveries_url').on(t.url).where(sql`state = 'disabled'`),
    index('webhook_deliveries_next_at').on(t.nextAt).where(sql`state = 'pending'`),
    index('webhook_deliveries_job_id_event_seq').on(t.jobId, t.eventSeq),
    index('webhook_deliveries_finished_at').on(t.finishedAt).where(sql`finished_at is not null`),
  ],
);
