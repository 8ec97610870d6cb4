// The answers of the API that the page reads.
import type { Waiting } from './jobs/descriptions.ts';

export type Status =
  | 'PENDING'
  | 'QUEUED'
  | 'CLAIMED'
  | 'PREPARING'
  | 'LEASE_PENDING'
  | 'RUNNING'
  | 'WAITING'
  | 'PAUSED'
  | 'ERROR'
  | 'SUCCESS'
  | 'PARTIAL'
  | 'CANCELED';
export type Scope = 'read' | 'enqueue' | 'control' | 'worker' | 'admin';
export type HoldKind = 'user' | 'drain' | 'budget' | 'error' | 'handler' | 'dependency';
export const priorities = ['URGENT', 'HIGH', 'NORMAL', 'LOW'] as const;

export interface JobError {
  code: string;
  message: string;
  name?: string;
  stack?: string;
  cause?: unknown;
  [more: string]: unknown;
}

export interface Hold {
  kind: HoldKind;
  reason: string | null;
  author: string | null;
  since: string | null;
  handler: 'running' | 'terminated' | null;
}

export interface JobSummary {
  id: string;
  type: string;
  queue: string;
  target_id: string | null;
  status: Status;
  priority: string;
  error: JobError | null;
  hold: Hold | null;
  attempts: number;
  attempts_since_resume: number;
  max_attempts: number;
  progress: number | null;
  progress_message: string | null;
  usage: { tokens: number; token_limit: number | null; units: Record<string, number>; budget: Record<string, number> };
  lease_owner: string | null;
  lease_id: string | null;
  lease_expires_at: string | null;
  heartbeat_at: string | null;
  cancel_requested: boolean;
  cancel_intent: 'pause' | 'cancel' | null;
  /** Null if the job waits for others, and no time wakes it. */
  run_at: string | null;
  created_at: string;
  started_at: string | null;
  finished_at: string | null;
  updated_at: string;
  held_since: string | null;
  waiting: Waiting | null;
  expires_at: string | null;
  on_error: 'block' | 'continue';
  timeout_seconds: number | null;
  cost_units: number;
  constraints: Record<string, unknown> | null;
  remote: boolean;
  webhook_url: string | null;
  client_request_id: string | null;
  author: string | null;
  traceparent: string | null;
  parent_id: string | null;
  schedule_id: string | null;
  payload?: unknown;
  result?: unknown;
}

interface Phase {
  name: string;
  kind: string;
  status: string;
  progress: number;
  message: string | null;
  result: unknown;
  error: JobError | null;
  attempt: number;
  started_at: string | null;
  finished_at: string | null;
}

export interface Job extends JobSummary {
  payload: unknown;
  result: unknown;
  checkpoint: unknown;
  phases: Phase[];
  /** Set if `phases` is incomplete. */
  phases_total?: number;
}

export interface LaneJob {
  id: string;
  type: string;
  status: Status;
  priority: string;
  created_at: string;
  run_at: string | null;
  held_since: string | null;
  lease_owner: string | null;
  error: JobError | null;
  hold: Hold | null;
  waiting: Waiting | null;
}

export interface HeadJob extends LaneJob {
  progress: number | null;
  progress_message: string | null;
  attempts: number;
  started_at: string | null;
}

export interface Lane {
  id: string;
  labels: Record<string, string>;
  paused: boolean;
  paused_at: string | null;
  paused_by: string | null;
  pause_reason: string | null;
  paused_until: string | null;
  /** The one job that may run while the target is paused. */
  canary_job_id: string | null;
  created_at: string;
  head: HeadJob | null;
  hold: {
    by: 'job' | 'pause';
    detail: string;
    since: string | null;
    job_id: string | null;
    kind: HoldKind;
    reason: string | null;
    author: string | null;
  } | null;
  waiting: number;
  waiting_exact: boolean;
  oldest_waiting_at?: string | null;
  next: LaneJob[];
}

export interface Attention {
  holds: {
    paused: number;
    error: number;
    newest: { job: JobSummary; waiting: number; oldest_waiting_at: string | null }[];
  };
  failing_types: { type: string; count: number; last_job_id: string; last_at: string | null; error: JobError | null }[];
  failed_schedules: { id: string; name: string; at: string; message: string }[];
  lost_workers: { owner: string; attempts: number; last_at: string; last_job_id: string }[];
  disabled_webhooks: { url: string; deliveries: number; since: string }[];
}

export interface LiveEvent {
  id: string;
  at: string;
  type: string;
  job_id: string | null;
  target_id: string | null;
  from: Status | null;
  to: Status | null;
  attempt: number | null;
  lease_id: string | null;
  actor: string;
  data: Record<string, unknown> | null;
}

export interface Why {
  job_id: string;
  status: Status;
  running: boolean;
  claimable: boolean;
  position: number | null;
  reasons: { code: string; detail: string; job_id?: string | null; release?: { detail: string; at: string | null } }[];
}

/** The jobs around a job. */
export interface JobGraph {
  nodes: { id: string; type: string | null; status: Status | null; target_id: string | null }[];
  edges: { job_id: string; after_id: string; kind: 'after' | 'child'; on_failure: string; state: string }[];
  truncated: boolean;
}

export interface LogLine {
  at: string;
  attempt: number;
  level: 'info' | 'warn' | 'error';
  message: string;
  data: Record<string, unknown> | null;
}

export interface Operation {
  id: string;
  action: string;
  filter: Record<string, unknown>;
  status: 'running' | 'finished' | 'failed';
  author: string | null;
  reason: string | null;
  matched: number;
  done: number;
  failed: number;
  progress: number;
  canary: 'waiting' | 'succeeded' | 'failed' | null;
  canary_job_id: string | null;
  created_at: string;
  finished_at: string | null;
}

export interface Schedule {
  id: string;
  name: string;
  cron: string;
  timezone: string;
  job: Record<string, unknown>;
  missed: string;
  paused: boolean;
  paused_at: string | null;
  paused_by: string | null;
  next_at: string | null;
  next_runs: string[];
  last_fired_at: string | null;
  last_job_id: string | null;
  author: string | null;
}

export interface Delivery {
  id: string;
  job_id: string;
  event_id: string;
  event_type: string;
  url: string;
  state: 'pending' | 'delivered' | 'failed' | 'disabled';
  attempts: number;
  next_at: string | null;
  last_status: number | null;
  last_error: string | null;
  tries: { at: string; status: number | null; error: string | null }[];
  created_at: string;
  finished_at: string | null;
}

export interface Daemon {
  id: string;
  host: string;
  pid: number;
  version: string;
  started_at: string;
  last_beat_at: string;
  seconds_since_beat: number;
  state: 'alive' | 'draining' | 'lost';
  drain_ends_at: string | null;
  running: number;
  job_types: string[];
}

export interface Tenant {
  id: string;
  slug: string;
  schema: string;
  status: string;
  settings: Record<string, unknown>;
  created_at: string;
  updated_at: string;
}

export interface ApiKey {
  id: string;
  name: string;
  scopes: Scope[];
  created_at: string;
  expires_at: string | null;
  revoked_at: string | null;
  last_used_at: string | null;
  key?: string;
}

export interface Session {
  key: { id: string; name: string; scopes: Scope[] };
  operator: boolean;
  tenant: string | null;
  tenant_status: string | null;
}
