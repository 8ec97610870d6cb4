// The one statement that puts jobs in, placed as they are, with their events: waiting, or, where a
// daemon keeps slots for them, running from the start.
import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { insertEvents } from '../../events/log/record.ts';
import { Pace } from '../../kernel/pace.ts';
import { insertLease } from '../claim/lease.ts';
import { type Job, priorities, type RetryPolicy } from '../model/job.ts';
import { type Status, transitions } from '../model/states.ts';
import { checkDocument, payloadLimitBytes } from './document-limit.ts';

/** A row for the insert: columns of `jobs`, and `expires_in`. What is undefined is null there. */
export interface PlacedJob {
  id: string;
  status: Status;
  type: string;
  queue: string;
  remote: boolean;
  target_id: string | undefined;
  lane_head: boolean;
  lane_rank: number | undefined;
  lane_seq: string;
  priority: number;
  payload: unknown;
  run_at: string | undefined;
  max_attempts: number;
  retry: RetryPolicy | undefined;
  timeout_seconds: number | undefined;
  expires_in: number | undefined;
  token_limit: number | undefined;
  cost_units: number;
  constraints: Record<string, unknown> | undefined;
  on_error: Job['onError'];
  on_drain: 'pause' | 'requeue' | undefined;
  webhook_url: string | undefined;
  client_request_id: string | undefined;
  request_hash: string | undefined;
  traceparent: string | undefined;
  author: string | undefined;
  parent_id: string | undefined;
  schedule_id: string | undefined;
}

/** Slots that a daemon keeps for jobs which are about to be put in. */
export interface Reservation {
  leaseId: string;
  owner: string;
  leaseSeconds: number;
  /** They are RUNNING under that lease. */
  started(jobs: Job[]): void;
  /** They are not, or nobody knows. */
  failed(error: unknown): void;
}

const columns = `id uuid, status text, type text, queue text, remote boolean, target_id text, lane_head boolean,
  lane_rank smallint, lane_seq bigint, priority smallint, payload jsonb, run_at timestamptz, max_attempts int, retry jsonb,
  timeout_seconds real, expires_in float8, token_limit bigint, cost_units int, constraints jsonb, on_error text, on_drain text,
  webhook_url text, client_request_id text, request_hash text, traceparent text, author text, parent_id uuid, schedule_id uuid`;

/** Rows that go in with one statement, and their JSON. */
export interface InsertPart {
  rows: PlacedJob[];
  json: string;
}

// A statement with much more than a payload would be made, sent and answered in steps that others have to wait for.
const partChars = 1_048_576;

/** Almost always one part. Several belong into one transaction. */
export async function toInsertParts(rows: PlacedJob[]): Promise<InsertPart[]> {
  const parts: InsertPart[] = [];
  const pace = new Pace();
  let texts: string[] = [];
  let chars = 0;
  let first = 0;
  const close = (end: number) => {
    parts.push({ rows: rows.slice(first, end), json: `[${texts.join(',')}]` });
    texts = [];
    chars = 0;
    first = end;
  };
  for (const [n, row] of rows.entries()) {
    const text = JSON.stringify(row);
    // The backstop of all routes; those that can name the field better have done so.
    if (text.length > payloadLimitBytes) checkDocument(row.payload, 'payload');
    if (chars > 0 && chars + text.length > partChars) {
      close(n);
      await pace.pause();
    }
    texts.push(text);
    chars += text.length;
  }
  close(rows.length);
  return parts;
}

/** With a reservation they are enqueued and started in one go. */
export async function insertJobs(
  tx: Queryable,
  schema: Schema,
  { rows, json }: InsertPart,
  actor: string,
  reservation?: Reservation,
): Promise<Job[]> {
  const told = insertEvents(
    schema,
    {
      source: 'created',
      type: `'${transitions.enqueue.event}'`,
      actor: '$2',
      from: 'null',
      to: 'status',
      ...(reservation && startedWith.enqueued),
    },
    ...(reservation ? [startedWith.event] : []),
  );
  const inserted = await tx.query<CreatedRow>(
    `with given as (select g.*, now() as at from jsonb_to_recordset($1::jsonb) as g(${columns})),
     created as (
       insert into ${schema}.jobs (id, status, type, queue, remote, target_id, lane_head, lane_rank, lane_seq, priority, payload,
         created_at, updated_at, run_at, max_attempts, retry, timeout_seconds, expires_at, token_limit, cost_units, constraints,
         on_error, on_drain, webhook_url, client_request_id, request_hash, traceparent, author, parent_id, schedule_id
         ${reservation ? startedWith.columns : ''})
       select id, ${reservation ? `'${transitions.start.to}'` : 'status'}, type, queue, remote, target_id, lane_head, lane_rank,
         lane_seq, priority, payload, at, at, coalesce(run_at, at), max_attempts, retry, timeout_seconds,
         at + expires_in * interval '1 second', token_limit, cost_units, constraints, on_error, on_drain, webhook_url,
         client_request_id, request_hash, traceparent, author, parent_id, schedule_id ${reservation ? startedWith.values : ''}
       from given
       on conflict (client_request_id) where client_request_id is not null do nothing
       returning id, target_id, status, attempt, lease_id, created_at, run_at, expires_at ${reservation ? ', payload' : ''}),
     ${reservation ? `taken as (${insertLease(schema, 'local', startedWith.lease, 'created')}),` : ''}
     told as (${told})
     select * from created`,
    [json, actor, ...(reservation ? [reservation.leaseId, reservation.owner, reservation.leaseSeconds] : [])],
    'often',
  );
  const created = new Map(inserted.map((row) => [row.id, row]));
  return rows.flatMap((row) => {
    const found = created.get(row.id);
    return found === undefined ? [] : [toInsertedJob(row, found)];
  });
}

/** What the insert of jobs that start at once has beside that of others. */
const startedWith = {
  columns: ', attempt, started_at, lease_id, lease_owner',
  values: ', 1, at, $3::uuid, $4::text',
  enqueued: { to: `'${transitions.enqueue.to}'`, attempt: '0', lease: 'null' },
  event: {
    source: 'created',
    type: `'${transitions.start.event}'`,
    actor: `'worker:' || $4::text`,
    from: `'${transitions.enqueue.to}'`,
    to: 'status',
  },
  lease: { lease: '$3::uuid', owner: '$4::text', seconds: '$5' },
};

/** What only the database knows of a new job; everything else is as it was given. */
interface CreatedRow {
  id: string;
  created_at: string;
  run_at: string;
  expires_at: string | null;
  /** As Postgres stored it; only for a job that starts at once. */
  payload?: unknown;
}

function toInsertedJob(placed: PlacedJob, created: CreatedRow): Job {
  return {
    id: placed.id,
    status: placed.status,
    type: placed.type,
    queue: placed.queue,
    remote: placed.remote,
    targetId: placed.target_id ?? null,
    laneHead: placed.lane_head,
    laneRank: placed.lane_rank ?? null,
    laneSeq: placed.lane_seq,
    priority: priorities[placed.priority] as Job['priority'],
    createdAt: created.created_at,
    runAt: created.run_at,
    updatedAt: created.created_at,
    startedAt: null,
    finishedAt: null,
    heldSince: null,
    expiresAt: created.expires_at,
    staleAt: null,
    attempt: 0,
    attemptFloor: 0,
    maxAttempts: placed.max_attempts,
    leaseId: null,
    leaseOwner: null,
    leaseExpiresAt: null,
    heartbeatAt: null,
    cancelRequested: false,
    cancelIntent: null,
    cancelDetail: null,
    costUnits: placed.cost_units,
    tokensUsed: 0,
    tokenLimit: placed.token_limit ?? null,
    progress: null,
    progressMessage: null,
    payload: created.payload ?? placed.payload,
    result: null,
    error: null,
    hold: null,
    checkpoint: null,
    retry: placed.retry ?? null,
    timeoutSeconds: placed.timeout_seconds ?? null,
    constraints: placed.constraints ?? null,
    onError: placed.on_error,
    onDrain: placed.on_drain ?? null,
    webhookUrl: placed.webhook_url ?? null,
    webhookSent: false,
    clientRequestId: placed.client_request_id ?? null,
    requestHash: placed.request_hash ?? null,
    traceparent: placed.traceparent ?? null,
    author: placed.author ?? null,
    parentId: placed.parent_id ?? null,
    scheduleId: placed.schedule_id ?? null,
  };
}
