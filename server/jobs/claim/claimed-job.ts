// What a claim answers: the widest stream of rows of the product, so only what a worker needs, and what
// is unusual in one column that is mostly null.
import { type Job, priorities } from '../model/job.ts';

const nullableColumns = [
  'token_limit',
  'checkpoint',
  'retry',
  'timeout_seconds',
  'constraints',
  'on_drain',
  'traceparent',
  'author',
  'parent_id',
] as const;
const defaultedColumns = {
  attempt_floor: '0',
  max_attempts: '1',
  cost_units: '1',
  tokens_used: '0',
  queue: `'default'`,
  on_error: `'block'`,
} as const;

const isDefault = [
  ...Object.entries(defaultedColumns).map(([column, value]) => `${column} = ${value}`),
  ...nullableColumns.map((column) => `${column} is null`),
].join(' and ');
const nonDefaults = [...Object.keys(defaultedColumns), ...nullableColumns]
  .map((column) => `'${column}', ${column}`)
  .join(', ');

/** For the UPDATE of a claim. */
export const returningClaimed = `id, type, target_id, priority, created_at, run_at, started_at, attempt, payload,
  case when ${isDefault} then null else jsonb_build_object(${nonDefaults}) end as rest`;

const columns = [
  'id',
  'type',
  'target_id',
  'priority',
  'created_at',
  'nullif(run_at, created_at) as run_at',
  'attempt',
  'payload',
  'rest',
];

/** How many columns `selectClaimed` has of its own: these, and `started_at`. */
export const claimedColumns = columns.length + 1;

/** Of the CTE `claimed`. Jobs that start share the time at which they do: the first row tells it for all. */
export function selectClaimed(starts: boolean, more = ''): string {
  const startedAt = starts ? 'case when id = (select id from claimed limit 1) then started_at end' : 'started_at';
  return `select ${columns.join(', ')}, ${startedAt} as started_at${more && `, ${more}`} from claimed`;
}

export interface ClaimedRow {
  id: string;
  type: string;
  target_id: string | null;
  priority: number;
  created_at: string;
  /** Null: the same as `created_at`. */
  run_at: string | null;
  started_at: string | null;
  attempt: number;
  payload: unknown;
  /** Null: all as usual. */
  rest: NonDefaults | null;
  /** The claim left out jobs because of their bytes. */
  cut?: boolean;
}

interface NonDefaults extends Record<(typeof nullableColumns)[number], unknown> {
  attempt_floor: number;
  max_attempts: number;
  cost_units: number;
  tokens_used: number;
  queue: string;
  on_error: Job['onError'];
  token_limit: number | null;
  retry: Job['retry'];
  timeout_seconds: number | null;
  constraints: Job['constraints'];
  on_drain: Job['onDrain'];
  traceparent: string | null;
  author: string | null;
  parent_id: string | null;
}

const defaults: NonDefaults = {
  attempt_floor: 0,
  max_attempts: 1,
  cost_units: 1,
  tokens_used: 0,
  queue: 'default',
  on_error: 'block',
  token_limit: null,
  checkpoint: null,
  retry: null,
  timeout_seconds: null,
  constraints: null,
  on_drain: null,
  traceparent: null,
  author: null,
  parent_id: null,
};

type Common = Pick<Job, 'status' | 'leaseId' | 'leaseOwner'>;

/** Jobs as their new holder sees them; what only readers of the API ask for is left empty. */
export function toClaimedJobs(rows: ClaimedRow[], common: Common): Job[] {
  const startedAt = rows.find((row) => row.started_at !== null)?.started_at ?? null;
  return rows.map((row) => toClaimedJob(row, row.started_at ?? startedAt, common));
}

function toClaimedJob(row: ClaimedRow, startedAt: string | null, { status, leaseId, leaseOwner }: Common): Job {
  const more = row.rest ?? defaults;
  return {
    id: row.id,
    status,
    type: row.type,
    queue: more.queue,
    remote: false,
    targetId: row.target_id,
    laneHead: true,
    laneRank: null,
    laneSeq: '0',
    priority: priorities[row.priority] as Job['priority'],
    createdAt: row.created_at,
    runAt: row.run_at ?? row.created_at,
    updatedAt: startedAt ?? row.created_at,
    startedAt,
    finishedAt: null,
    heldSince: null,
    expiresAt: null,
    staleAt: null,
    attempt: row.attempt,
    attemptFloor: more.attempt_floor,
    maxAttempts: more.max_attempts,
    leaseId,
    leaseOwner,
    leaseExpiresAt: null,
    heartbeatAt: null,
    cancelRequested: false,
    cancelIntent: null,
    cancelDetail: null,
    costUnits: more.cost_units,
    tokensUsed: more.tokens_used,
    tokenLimit: more.token_limit,
    progress: null,
    progressMessage: null,
    payload: row.payload,
    result: null,
    error: null,
    hold: null,
    checkpoint: more.checkpoint,
    retry: more.retry,
    timeoutSeconds: more.timeout_seconds,
    constraints: more.constraints,
    onError: more.on_error,
    onDrain: more.on_drain,
    webhookUrl: null,
    webhookSent: false,
    clientRequestId: null,
    requestHash: null,
    traceparent: more.traceparent,
    author: more.author,
    parentId: more.parent_id,
    scheduleId: null,
  };
}
