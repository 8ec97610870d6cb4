// The tables of one tenant that hold its lanes, jobs, phases and leases.
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
    /** The one job that may run while the target is paused: if it succeeds, the pause ends. See jobs/lanes/conclude-canaries.ts. */
    canaryJobId: uuid('canary_job_id'),
    /** The canary itself paused the target; no person had. */
    canaryPaused: boolean('canary_paused').notNull().default(false),
    createdAt: at('created_at').notNull().defaultNow(),
  },
  (t) => [
    check('targets_canary', sql`canary_job_id is null and not canary_paused or paused_at is not null`),
    // Whether a job that ended was a canary: mostly there is none.
    index('targets_canary_job_id').on(t.canaryJobId).where(sql`canary_job_id is not null`),
    // Targets whose pause ends at a time.
    index('targets_paused_until').on(t.pausedUntil).where(sql`paused_until is not null`),
    // Whether a lane may advance: few targets are paused, so the index is mostly empty.
    index('targets_paused_id').on(t.id).where(sql`paused_at is not null`),
  ],
);

export const jobs = tenantTemplate.table(
  'jobs',
  {
    // Columns of fixed width that are never null come first: Postgres reads them without walking the row.
    id: uuid('id').primaryKey(),
    createdAt: at('created_at').notNull().defaultNow(),
    /** When the job may first run, run again after a backoff, or wakes by itself. */
    runAt: at('run_at').notNull().defaultNow(),
    updatedAt: at('updated_at').notNull().defaultNow(),
    laneSeq: bigintText('lane_seq').notNull().default(sql`0`),
    tokensUsed: bigintText('tokens_used').notNull().default(sql`0`),
    attempt: integer('attempt').notNull().default(0),
    /** Attempts made before the last resume, which grants a fresh set. */
    attemptFloor: integer('attempt_floor').notNull().default(0),
    maxAttempts: integer('max_attempts').notNull().default(1),
    costUnits: integer('cost_units').notNull().default(1),
    /** 0 URGENT, 1 HIGH, 2 NORMAL, 3 LOW. */
    priority: smallint('priority').notNull().default(2),
    /** The one job of its lane that may be claimed, runs, or holds the lane. Always true without a target. */
    laneHead: boolean('lane_head').notNull(),
    /** Only remote workers may claim it: no daemon had a handler for its type, or it came by the scheduler API. */
    remote: boolean('remote').notNull().default(false),
    /** QUEUED under a limit that has no room yet: in no claim index until the gate opens it; see jobs/limits/gate.ts. */
    gated: boolean('gated').notNull().default(false),
    cancelRequested: boolean('cancel_requested').notNull().default(false),
    webhookSent: boolean('webhook_sent').notNull().default(false),
    status: text('status').notNull(),
    type: text('type').notNull(),
    queue: text('queue').notNull().default('default'),
    onError: text('on_error').notNull().default('block'),
    targetId: text('target_id'),
    /** Place in line: 0 will hold the lane as its head, 1 is first, 2 and above by priority. Null if not in line. */
    laneRank: smallint('lane_rank'),
    leaseId: uuid('lease_id'),
    leaseOwner: text('lease_owner'),
    startedAt: at('started_at'),
    finishedAt: at('finished_at'),
    /** PAUSED, ERROR or WAITING since; deadlines stand still meanwhile. */
    heldSince: at('held_since'),
    expiresAt: at('expires_at'),
    staleAt: at('stale_at'),
    cancelIntent: text('cancel_intent'),
    /** `{ reason, author, at }` of the request on the flag. */
    cancelDetail: jsonb('cancel_detail'),
    tokenLimit: bigintText('token_limit'),
    progress: real('progress'),
    progressMessage: text('progress_message'),
    payload: jsonb('payload').notNull(),
    result: jsonb('result'),
    /** `{ code, message }` of the last failure; a `message` alone when paused. */
    error: jsonb('error'),
    /** `{ kind, reason, author }` of a pause, or of a handler that was asked to stop and still runs; see jobs/model/hold.ts. */
    hold: jsonb('hold'),
    checkpoint: jsonb('checkpoint'),
    /** What a WAITING job waits for; see jobs/model/waiting.ts. */
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
    /** Null if no limit applies. Who may claim it, then the keys of its limits; see jobs/limits/limit-keys.ts. */
    limitKeys: text('limit_keys').array(),
    /** What the job may use of each unit but tokens: `{ "cents": 500 }`. Null if as its tenant says. */
    budget: jsonb('budget'),
    /** What it has used of each unit but tokens, over all attempts. */
    usage: jsonb('usage'),
    /** True if it has asked a person, so its end closes the questions that are open. Null: it never asked. */
    asked: boolean('asked'),
  },
  (t) => [
    // What each status means for the lease, the times and the lane. One expression, the usual first: it is
    // evaluated with every write of a job.
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
    // The whole claim path of the daemons' own workers, and of remote ones.
    index('jobs_claim_priority_created_at_id')
      .on(t.priority, t.createdAt, t.id)
      .where(sql`status = 'QUEUED' and lane_head and not remote and not gated`),
    index('jobs_claim_queue_priority_created_at_id')
      .on(t.queue, t.priority, t.createdAt, t.id)
      .where(sql`status = 'QUEUED' and lane_head and remote and not gated`),
    // The gate of limits: heads that wait, by their limits; and what counts as in use. Plain jobs are in neither.
    index('jobs_gated_limit_keys_priority_created_at_id')
      .on(t.limitKeys, t.priority, t.createdAt, t.id)
      .where(sql`gated and lane_head and status = 'QUEUED'`),
    index('jobs_limit_keys_status')
      .on(t.limitKeys, t.status)
      .where(
        sql`limit_keys is not null and not gated and status in ('QUEUED','CLAIMED','PREPARING','LEASE_PENDING','RUNNING')`,
      ),
    // Two heads of one lane cannot be represented.
    uniqueIndex('jobs_target_id_head').on(t.targetId).where(sql`lane_head and target_id is not null`),
    // Promotion: who is next in the lane.
    index('jobs_target_id_lane_rank_lane_seq').on(t.targetId, t.laneRank, t.laneSeq).where(sql`lane_rank is not null`),
    // PENDING and WAITING jobs that are due. With the id: thousands may have the same time, and a batch reads only its own.
    index('jobs_run_at_id').on(t.runAt, t.id).where(sql`status in ('PENDING','WAITING')`),
    // Those of one lane: an enqueue lets them join before it.
    index('jobs_target_id_run_at').on(t.targetId, t.runAt).where(sql`status = 'PENDING' and not lane_head`),
    // Waiting jobs that may expire.
    index('jobs_expires_at').on(t.expiresAt).where(sql`expires_at is not null and status in ('PENDING','QUEUED')`),
    // Idempotent enqueue.
    uniqueIndex('jobs_client_request_id').on(t.clientRequestId).where(sql`client_request_id is not null`),
    // "What needs a person": the holds, newest first.
    index('jobs_held_status_id').on(t.status, t.id).where(sql`status in ('PAUSED','ERROR')`),
    // The jobs of one target, newest first: those outside its lane. The head and the line have indexes of their own.
    index('jobs_target_id_id').on(t.targetId, t.id).where(sql`not lane_head and lane_rank is null`),
    // Retention: stale and not yet deleted. Those that become stale are found in the event log.
    index('jobs_stale_at').on(t.staleAt).where(sql`stale_at is not null`),
  ],
);

/**
 * The phases of a job, and the durable calls of its `run` in the order in which they were made.
 * Deleted with the job. A foreign key would cost every write of a job, and all writes here are fenced by the job's row.
 */
export const phases = tenantTemplate.table(
  'phases',
  {
    jobId: uuid('job_id').notNull(),
    name: text('name').notNull(),
    /** `phase` of a definition with phases; the others are durable calls of `run`. */
    kind: text('kind').notNull().default('phase'),
    position: smallint('position').notNull(),
    /** Made while another durable call of the run was open: the order of such calls may change. */
    parallel: boolean('parallel').notNull().default(false),
    status: text('status').notNull().default('pending'),
    progress: real('progress').notNull().default(0),
    message: text('message'),
    result: jsonb('result'),
    error: jsonb('error'),
    attempt: integer('attempt').notNull().default(0),
    startedAt: at('started_at'),
    finishedAt: at('finished_at'),
    /** Until when a sleep lasts, or a wait at most. */
    waitsUntil: at('waits_until'),
    /** Of a wait for an event from outside: its name, what its data must contain, and one key of that for the index. */
    eventName: text('event_name'),
    match: jsonb('match'),
    matchKey: text('match_key'),
    /** The row of `received_events` that ended the wait. */
    receivedId: uuid('received_id'),
  },
  (t) => [
    primaryKey({ columns: [t.jobId, t.name] }),
    // Who waits for an event that has come, in an order, so that a batch of many reads only its own.
    index('phases_event_name_match_key_job_id')
      .on(t.eventName, t.matchKey, t.jobId)
      .where(sql`event_name is not null and status in ('pending','running')`),
    check('phases_kind', sql`kind in ('phase','step','sleep','event','children','question')`),
    // Durable calls that wait for children: a job may still be about to store that it waits.
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
    // The sweeper and the capacity sum read the active ones; expires_at stays out so that renewals are HOT.
    index('leases_active_id').on(t.id).where(sql`state = 'ACTIVE'`),
    index('leases_released_at').on(t.releasedAt).where(sql`released_at is not null`),
    // Leases that remote workers released lately, among the many of daemons.
    index('leases_released_at_remote').on(t.releasedAt).where(sql`released_at is not null and kind <> 'local'`),
  ],
);

// The table of one tenant that says which job waits for which others.

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
    /** The place of a child in the order of its call. */
    position: integer('position').notNull().default(0),
    /** What an end of `afterId` without success means. `stop`: the durable call ends with it. */
    onFailure: text('on_failure').notNull().default('hold'),
    /** How many children of the call may be unfinished at once; null: any number. */
    concurrency: integer('concurrency'),
    /** `gated`: a child that has not had its turn. `canceling`: its parent was canceled, and it is to be canceled. */
    state: text('state').notNull().default('open'),
  },
  (t) => [
    primaryKey({ columns: [t.jobId, t.afterId] }),
    check('dependencies_on_failure', sql`on_failure in ('hold','cancel','continue','stop')`),
    check('dependencies_state', sql`state in ('gated','open','canceling','succeeded','failed','canceled')`),
    // Which jobs wait for one that has ended.
    index('dependencies_after_id').on(t.afterId),
    // What a job still waits for, and which of its children come next.
    index('dependencies_unfinished').on(t.jobId, t.step, t.state, t.position).where(sql`state in ('gated','open')`),
    index('dependencies_canceling').on(t.jobId).where(sql`state = 'canceling'`),
  ],
);
