// The tables of one tenant that hold its lanes, its jobs and the edges between them.
import { sql } from 'drizzle-orm';
import {
  boolean,
  check,
  index,
  integer,
  jsonb,
  primaryKey,
  real,
  smallint,
  text,
  uniqueIndex,
  uuid,
} from 'drizzle-orm/pg-core';
import { at, bigintText, tenantTemplate } from './columns.ts';

/** One row per target: the lane's lock, its counter and its pause. */
export const targets = tenantTemplate.table(
  'targets',
  {
    id: text('id').primaryKey(),
    /** The last `lane_seq` given out; raised under this row's lock. */
    laneSeq: bigintText('lane_seq').notNull().default(sql`0`),
    labels: jsonb('labels').notNull().default({}),
    pausedAt: at('paused_at'),
    pausedBy: text('paused_by'),
    pauseReason: text('pause_reason'),
    pausedUntil: at('paused_until'),
    /**
     * The canary: the one job that may run while the target is paused. If it succeeds, the pause ends. See
     * jobs/lanes/conclude-canaries.ts.
     */
    canaryJobId: uuid('canary_job_id'),
    /** The canary paused the target, not a person. */
    canaryPaused: boolean('canary_paused').notNull().default(false),
    createdAt: at('created_at').notNull().defaultNow(),
  },
  (t) => [
    check('targets_canary', sql`canary_job_id is null and not canary_paused or paused_at is not null`),
    // Finds out whether a job that ended was a canary. The index is usually empty.
    index('targets_canary_job_id').on(t.canaryJobId).where(sql`canary_job_id is not null`),
    // Targets whose pause ends at a time.
    index('targets_paused_until').on(t.pausedUntil).where(sql`paused_until is not null`),
    // Finds out whether a lane may advance. Few targets are paused, so the index is usually empty.
    index('targets_paused_id').on(t.id).where(sql`paused_at is not null`),
  ],
);

export const jobs = tenantTemplate.table(
  'jobs',
  {
    // Columns of fixed width that are never null come first: Postgres reads them without walking the row.
    id: uuid('id').primaryKey(),
    createdAt: at('created_at').notNull().defaultNow(),
    /** The time at which the job may first run, runs again after a backoff, or wakes. */
    runAt: at('run_at').notNull().defaultNow(),
    updatedAt: at('updated_at').notNull().defaultNow(),
    laneSeq: bigintText('lane_seq').notNull().default(sql`0`),
    tokensUsed: bigintText('tokens_used').notNull().default(sql`0`),
    attempt: integer('attempt').notNull().default(0),
    /** The number of attempts before the last resume, which grants a new set. */
    attemptFloor: integer('attempt_floor').notNull().default(0),
    maxAttempts: integer('max_attempts').notNull().default(1),
    costUnits: integer('cost_units').notNull().default(1),
    /** 0 URGENT, 1 HIGH, 2 NORMAL, 3 LOW. */
    priority: smallint('priority').notNull().default(2),
    /** The one job of its lane that may be claimed, runs, or holds the lane. Always true without a target. */
    laneHead: boolean('lane_head').notNull(),
    /**
     * Only remote workers may claim the job, because no daemon had a handler for its type or it came by the scheduler
     * API.
     */
    remote: boolean('remote').notNull().default(false),
    /**
     * The job is QUEUED and its limits have no room yet. No claim index has it until the gate opens it; see
     * jobs/limits/gate.ts.
     */
    gated: boolean('gated').notNull().default(false),
    cancelRequested: boolean('cancel_requested').notNull().default(false),
    webhookSent: boolean('webhook_sent').notNull().default(false),
    status: text('status').notNull(),
    type: text('type').notNull(),
    queue: text('queue').notNull().default('default'),
    onError: text('on_error').notNull().default('block'),
    targetId: text('target_id'),
    /**
     * Position in line: 0 will hold the lane as its head, 1 is first, 2 and above by priority. Null outside of the
     * line.
     */
    laneRank: smallint('lane_rank'),
    leaseId: uuid('lease_id'),
    leaseOwner: text('lease_owner'),
    startedAt: at('started_at'),
    finishedAt: at('finished_at'),
    /** The start of PAUSED, ERROR or WAITING. Deadlines stand still meanwhile. */
    heldSince: at('held_since'),
    expiresAt: at('expires_at'),
    staleAt: at('stale_at'),
    cancelIntent: text('cancel_intent'),
    /** `{ reason, author, at }` of the stop request. */
    cancelDetail: jsonb('cancel_detail'),
    tokenLimit: bigintText('token_limit'),
    progress: real('progress'),
    progressMessage: text('progress_message'),
    payload: jsonb('payload').notNull(),
    result: jsonb('result'),
    /** `{ code, message }` of the last failure; a `message` alone when paused. */
    error: jsonb('error'),
    /**
     * `{ kind, reason, author }` of a pause, or of a handler that was asked to stop and still runs; see
     * jobs/model/hold.ts.
     */
    hold: jsonb('hold'),
    checkpoint: jsonb('checkpoint'),
    /** The reason for which the job is WAITING; see jobs/model/waiting.ts. */
    waiting: jsonb('waiting'),
    retry: jsonb('retry'),
    timeoutSeconds: real('timeout_seconds'),
    constraints: jsonb('constraints'),
    onDrain: text('on_drain'),
    webhookUrl: text('webhook_url'),
    clientRequestId: text('client_request_id'),
    requestHash: text('request_hash'),
    traceparent: text('traceparent'),
    author: text('author'),
    parentId: uuid('parent_id'),
    scheduleId: uuid('schedule_id'),
    /** Who may claim the job, then the keys of its limits; see jobs/limits/limit-keys.ts. Null if no limit applies. */
    limitKeys: text('limit_keys').array(),
    /** Limits by unit, except tokens: `{ "cents": 500 }`. Null if the tenant's limits apply. */
    budget: jsonb('budget'),
    /** Usage by unit, except tokens, over all attempts. */
    usage: jsonb('usage'),
    /** True if the job has asked a question, so that its end closes the open ones. Null if it never asked. */
    asked: boolean('asked'),
  },
  (t) => [
    // The lease, times and lane that each status implies. One expression with the most frequent case first, because
    // every write of a job evaluates it.
    check(
      'jobs_shape',
      sql`case
        when status in ('SUCCESS','PARTIAL','CANCELED')
          then finished_at is not null and held_since is null and lane_rank is null and (target_id is null or not lane_head)
        when status in ('RUNNING','CLAIMED','PREPARING','LEASE_PENDING')
          then lane_head and lease_id is not null and lease_owner is not null
            and finished_at is null and held_since is null and lane_rank is null
        when lane_rank is not null and (target_id is null or lane_head) then false
        when status = 'QUEUED' then finished_at is null and held_since is null
        when status = 'PENDING' then finished_at is null and held_since is null and lane_rank is null
        when status = 'PAUSED' then finished_at is null and held_since is not null
        when status = 'ERROR' then finished_at is not null and held_since is not null
        when status = 'WAITING' then finished_at is null and held_since is not null and lane_rank is null and waiting is not null
        else false end`,
    ),
    check('jobs_no_target_is_head', sql`target_id is not null or lane_head`),
    check('jobs_attempts', sql`attempt >= attempt_floor and attempt - attempt_floor <= max_attempts`),
    check(
      'jobs_cancel_intent',
      sql`cancel_requested = (cancel_intent is not null) and cancel_intent in ('pause','cancel')`,
    ),
    check(
      'jobs_choices',
      sql`priority between 0 and 3 and on_error in ('block','continue') and on_drain in ('pause','requeue') and max_attempts > 0 and cost_units > 0`,
    ),
    // The claim path of the daemons' own workers, and of remote workers.
    index('jobs_claim_priority_created_at_id')
      .on(t.priority, t.createdAt, t.id)
      .where(sql.raw(isClaimable('daemon'))),
    index('jobs_claim_queue_priority_created_at_id')
      .on(t.queue, t.priority, t.createdAt, t.id)
      .where(sql.raw(isClaimable('remoteWorker'))),
    // The gate of limits: waiting heads by their limits, and jobs in use. Jobs without limits are in neither index.
    index('jobs_gated_limit_keys_priority_created_at_id')
      .on(t.limitKeys, t.priority, t.createdAt, t.id)
      .where(sql.raw(isAtGate())),
    index('jobs_limit_keys_status').on(t.limitKeys, t.status).where(sql.raw(isInUse())),
    // Makes two heads of one lane impossible.
    uniqueIndex('jobs_target_id_head').on(t.targetId).where(sql`lane_head and target_id is not null`),
    // Promotion: the next job of the lane.
    index('jobs_target_id_lane_rank_lane_seq').on(t.targetId, t.laneRank, t.laneSeq).where(sql`lane_rank is not null`),
    // PENDING and WAITING jobs that are due. The id is included, because thousands may have the same time and a batch
    // reads only its own.
    index('jobs_run_at_id').on(t.runAt, t.id).where(sql`status in ('PENDING','WAITING')`),
    // Due jobs of one lane, which join it before a new job does.
    index('jobs_target_id_run_at').on(t.targetId, t.runAt).where(sql.raw(isOutOfLine())),
    // Waiting jobs that may expire.
    index('jobs_expires_at').on(t.expiresAt).where(sql`expires_at is not null and status in ('PENDING','QUEUED')`),
    // Idempotent enqueue.
    uniqueIndex('jobs_client_request_id').on(t.clientRequestId).where(sql`client_request_id is not null`),
    // Holds, newest first, for the attention list.
    index('jobs_held_status_id').on(t.status, t.id).where(sql`status in ('PAUSED','ERROR')`),
    // The jobs of one target outside its lane, newest first. The head and the line have their own indexes.
    index('jobs_target_id_id').on(t.targetId, t.id).where(sql`not lane_head and lane_rank is null`),
    // Retention: stale jobs that are not deleted yet. The event log shows which jobs become stale.
    index('jobs_stale_at').on(t.staleAt).where(sql`stale_at is not null`),
  ],
);

/**
 * One row per edge: `jobId` waits for `afterId`, because it was enqueued to run after it (`step` is empty), or because
 * the durable call `step` of its handler waits for this child. A job without dependencies has no row.
 */
export const dependencies = tenantTemplate.table(
  'dependencies',
  {
    jobId: uuid('job_id').notNull(),
    afterId: uuid('after_id').notNull(),
    step: text('step').notNull().default(''),
    /** The position of a child in the order of its call. */
    position: integer('position').notNull().default(0),
    /** The effect if `afterId` ends without success. `stop`: the durable call ends with it. */
    onFailure: text('on_failure').notNull().default('hold'),
    /** The number of children of the call that may be unfinished at once; null for any number. */
    concurrency: integer('concurrency'),
    /** `gated`: a child that waits for its turn. `canceling`: its parent was canceled, and it must be canceled. */
    state: text('state').notNull().default('open'),
  },
  (t) => [
    primaryKey({ columns: [t.jobId, t.afterId] }),
    check('dependencies_on_failure', sql`on_failure in ('hold','cancel','continue','stop')`),
    check('dependencies_state', sql`state in ('gated','open','canceling','succeeded','failed','canceled')`),
    // The jobs that wait for a job that has ended.
    index('dependencies_after_id').on(t.afterId),
    // The edges that a job still waits for, and its next children.
    index('dependencies_unfinished').on(t.jobId, t.step, t.state, t.position).where(sql`state in ('gated','open')`),
    index('dependencies_canceling').on(t.jobId).where(sql`state = 'canceling'`),
  ],
);

// Predicates of partial indexes over jobs, for the definition of the index and for the statements that read it:
// Postgres uses a partial index only if the statement's condition implies its predicate. `j` is the alias of the table
// with its dot, if the statement has one.

/** Heads that a worker may claim. */
export function isClaimable(by: 'daemon' | 'remoteWorker', j = ''): string {
  return `${j}status = 'QUEUED' and ${j}lane_head and ${by === 'daemon' ? 'not ' : ''}${j}remote and not ${j}gated`;
}

/** Heads that wait at the gate of limits. */
export function isAtGate(j = ''): string {
  return `${j}gated and ${j}lane_head and ${j}status = 'QUEUED'`;
}

/** Jobs that limits count as running: they run, or were opened and may be claimed. */
export function isInUse(j = ''): string {
  return `${j}limit_keys is not null and not ${j}gated and ${j}status in ('QUEUED','CLAIMED','PREPARING','LEASE_PENDING','RUNNING')`;
}

/** Jobs of a lane that have not joined its line, and will when they are due. */
export function isOutOfLine(j = ''): string {
  return `${j}status = 'PENDING' and not ${j}lane_head`;
}
