// The public types of `leasehold/server`. They use only types of this package and of Node.
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { EventListener } from '../events/log/leasehold-event.ts';
import type { Priority, RetentionHook } from '../jobs/model/job-values.ts';
import type { BackoffPolicy } from '../kernel/backoff.ts';
import type { JobDefinition } from '../worker/handlers/define-job.ts';
import type { LeaseholdSettings } from './settings.ts';

export interface LeaseholdOptions {
  /** The Postgres to use: `postgres://user:password@host:5432/database`. */
  databaseUrl?: string | undefined;
  /** Instead of `databaseUrl`: a `pg` pool whose address, user and encryption are used. Its connections are not. */
  pool?: HostPool | undefined;
  /** The jobs that this process runs: definitions, or a module or directory of modules that exports them. */
  jobs?: readonly JobDefinition[] | string | undefined;
  /** Tenants that `start` creates if they are missing. */
  tenants?: readonly string[] | undefined;
  settings?: LeaseholdSettings | undefined;
  /**
   * The destination of log lines. The default is warnings and errors as JSON to standard error; `false` disables them.
   */
  logger?: HostLogger | false | undefined;
  /** Called after jobs were marked as stale. An error is logged; the call is not repeated. */
  onStale?: RetentionHook | undefined;
  /** Called before jobs are deleted, to keep a copy. If it fails they stay, and it is called again later. */
  onDelete?: RetentionHook | undefined;
}

/** The part of a `pg.Pool` that is read. */
export interface HostPool {
  readonly options: object;
}

export interface Leasehold {
  readonly tenants: Tenants;
  /** Migrates the database and every tenant to this version. `start` does this as well. */
  migrate(): Promise<void>;
  /**
   * Migrates the database, creates missing tenants and runs jobs. Waits for a database that cannot be reached; `stop`
   * ends the wait. A second call returns the promise of the first.
   */
  start(): Promise<void>;
  /**
   * Stops claiming, lets running jobs continue for the grace period, pauses or requeues the rest, and closes all
   * connections. A second call ends the grace period. The instance cannot be started again.
   */
  stop(options?: StopOptions): Promise<void>;
  /**
   * Enqueues one job. With `tx`, the job exists if and when that transaction commits. Works without `start`, for a
   * process that runs no jobs, once the tenant exists.
   */
  enqueue<J extends JobRef>(tenant: string, job: J, payload: InputOf<J>, options?: EnqueueOptions): Promise<JobHandle>;
  /** Enqueues several jobs, all or none, in their order: `[{ job, payload, targetId }, …]`. */
  enqueueMany<const J extends readonly JobRef[]>(
    tenant: string,
    jobs: { readonly [K in keyof J]: JobItem<J[K]> },
    options?: Pick<EnqueueOptions, 'tx'>,
  ): Promise<JobHandle[]>;
  /**
   * Sends an event to the jobs that wait for it with `waitForEvent`. With `tx`, it is sent if and when that transaction
   * commits. An event with the same `id` is received once, and the first receipt is returned.
   */
  sendEvent(tenant: string, name: string, data?: unknown, options?: SendEventOptions): Promise<EventReceipt>;
  /**
   * Returns the API and the dashboard as a router, to be mounted below a path: `app.use('/leasehold',
   * leasehold.router())`.
   */
  router(options?: RouterOptions): HostHandler;
  /**
   * Calls `listener` for events of this type, or of every type for `*`, of all tenants and processes, from about now
   * until `stop`, in the order of each job. Returns a function that removes it.
   */
  on(type: string, listener: EventListener): () => void;
}

export interface Tenants {
  /** The key has every scope of the tenant and is shown only here. */
  create(slug: string, settings?: TenantOptions): Promise<{ tenant: TenantInfo; key: string }>;
  /** Creates the tenant if it is missing. The key of a tenant that is created here is not kept. */
  ensure(slug: string, settings?: TenantOptions): Promise<TenantInfo>;
  list(): Promise<TenantInfo[]>;
  /** A given field replaces, null removes, the others stay. */
  configure(slug: string, settings: { [K in keyof TenantOptions]?: TenantOptions[K] | null }): Promise<TenantInfo>;
}

export interface TenantInfo {
  slug: string;
  schemaName: string;
  status: string;
  settings: TenantOptions;
}

/** As in the API. */
export interface TenantOptions {
  concurrency?: number | undefined;
  capacity_units?: number | undefined;
  queue_capacity_units?: Record<string, number> | undefined;
  token_limit?: number | undefined;
  timeout_seconds?: number | undefined;
  retention?:
    | {
        stale_after_seconds?: number | undefined;
        delete_after_seconds?: number | undefined;
        event_days?: number | undefined;
      }
    | undefined;
  webhook?: { url?: string | undefined; events?: string[] | undefined } | undefined;
  remote_job_types?: string[] | undefined;
  on_drain?: 'pause' | 'requeue' | undefined;
  limits?: Record<string, LimitOptions> | undefined;
  budgets?: Record<string, BudgetOptions> | undefined;
  max_queued?: number | undefined;
}

/** Limits of usage by unit; see docs/budgets.md. */
interface BudgetOptions {
  unit: string;
  limit: number;
  per: 'job' | 'day' | 'target_day';
  type?: string | undefined;
}

/** Rate and concurrency limits; see docs/limits.md. */
interface LimitOptions {
  rate?: number | undefined;
  per?: 'second' | 'minute' | 'hour' | 'day' | undefined;
  burst?: number | undefined;
  concurrency?: number | undefined;
  key?: string | undefined;
  type?: string | undefined;
  queue?: string | undefined;
}

export interface StopOptions {
  /**
   * How long running jobs may continue before they are paused or requeued. The default is `shutdownGracePeriodSeconds`.
   */
  graceSeconds?: number | undefined;
}

/** A job type by its definition, which types the payload, or by its name. */
export type JobRef = string | { readonly type: string; readonly types?: { readonly input: unknown } };

/** The payload with which a job of this definition is enqueued. */
export type InputOf<J> = J extends { types?: { readonly input: infer I } } ? I : unknown;

export interface EnqueueOptions {
  /** Your transaction: a `pg` client after BEGIN, or the transaction of drizzle, Kysely or postgres.js. */
  tx?: CallerTransaction | undefined;
  /** The target, whose lane the job joins. Without one it runs independently of all others. */
  targetId?: string | undefined;
  priority?: Priority | undefined;
  queue?: string | undefined;
  /** The job does not start before this time. */
  runAt?: Date | string | undefined;
  maxAttempts?: number | undefined;
  /** `codes` are error codes that count as recoverable. */
  retry?: (Partial<BackoffPolicy> & { codes?: string[] }) | undefined;
  timeoutSeconds?: number | undefined;
  /** If the job has not started by then, it fails with EXPIRED. */
  expiresInSeconds?: number | undefined;
  tokenLimit?: number | undefined;
  costUnits?: number | undefined;
  constraints?: Record<string, unknown> | undefined;
  onError?: 'block' | 'continue' | undefined;
  onDrain?: 'pause' | 'requeue' | undefined;
  webhookUrl?: string | undefined;
  /** A request with the same key enqueues the job once; a repetition returns the first job. */
  idempotencyKey?: string | undefined;
  /** At most one job of the type holds the key at a time. */
  unique?: UniqueOptions | undefined;
  /** The author, shown in the history of the job. */
  author?: string | undefined;
  /** Ids or idempotency keys of jobs that must succeed first, also of other jobs of the same `enqueueMany`. */
  after?: readonly (string | { job: string; onFailure?: 'hold' | 'cancel' | 'continue' | undefined })[] | undefined;
}

export interface UniqueOptions {
  key: string;
  /** How long a job holds the key: until it first starts, until it has ended (default), or for this many seconds. */
  until?: 'started' | 'finished' | number | undefined;
  /**
   * If the key is held: `skip` (default) changes nothing, `replace` gives the job that waits the new payload,
   * `debounce` also the new `runAt`.
   */
  conflict?: 'skip' | 'replace' | 'debounce' | undefined;
}

export interface SendEventOptions {
  /** Your transaction, as for `enqueue`. */
  tx?: CallerTransaction | undefined;
  /** Your name for this event. */
  id?: string | undefined;
}

export interface EventReceipt {
  /** The given id, otherwise a generated one. */
  id: string;
  name: string;
  receivedAt: string;
  /** An event of this name and id was received before. */
  replayed: boolean;
}

/** One of several jobs for `enqueueMany`. */
export type JobItem<J extends JobRef> = { job: J; payload: InputOf<J> } & Omit<EnqueueOptions, 'tx'>;

export interface JobHandle {
  id: string;
  tenant: string;
  type: string;
  /** A job with this idempotency key, or unique key, existed already. It is returned. */
  replayed: boolean;
  /** Set if the job holds the unique key of the request: the effect of the request on it. */
  unique?: 'skipped' | 'replaced' | 'debounced';
}

export type Scope = 'read' | 'enqueue' | 'control' | 'worker' | 'admin';

/** The caller, according to the host. */
export interface HostCaller {
  /** The slug of the tenant. Without one the caller is an operator, for /api/admin only. */
  tenant?: string | undefined;
  /** The default is all scopes. */
  scopes?: readonly Scope[] | undefined;
  /** The actor in events and the audit log, such as `user:ada`. */
  actor: string;
}

type MaybeCaller = HostCaller | undefined | null;

export interface RouterOptions {
  /**
   * Returns the caller; undefined refuses the request with 401. Without it, callers need an API key or a session of the
   * dashboard. A method, so that it may use the request type of the host's framework.
   */
  authorize?(request: IncomingMessage): MaybeCaller | Promise<MaybeCaller>;
  /** Refuses every change. */
  readOnly?: boolean | undefined;
}

/** For Express, Connect, or `http.createServer`. */
export type HostHandler = (request: IncomingMessage, response: ServerResponse, next: (error?: unknown) => void) => void;

/** The error of a refused call. `code` is one of the codes of the HTTP API. */
export interface LeaseholdProblem extends Error {
  readonly code: string;
  readonly extra: Record<string, unknown>;
}

export type LogLine = (fields: object, message?: string) => void;

/** The interface of pino, bunyan and `console`: fields first, then a constant message. */
export interface HostLogger {
  debug?: LogLine;
  info: LogLine;
  warn: LogLine;
  error: LogLine;
}

export type Rows = { rows: unknown } | readonly unknown[];

/** `pg`: a client after BEGIN, or any other object with this method. */
export interface PgClient {
  query(text: string, values: unknown[]): Promise<Rows>;
}

/** drizzle: the `tx` of `db.transaction(async (tx) => …)`. */
export interface DrizzleTransaction {
  readonly _: { readonly session: object };
}

/** Kysely: the `trx` of `db.transaction().execute(async (trx) => …)`. */
export interface KyselyTransaction {
  // biome-ignore lint/suspicious/noExplicitAny: its parameter is a class of Kysely's.
  executeQuery(query: any): Promise<{ rows: unknown }>;
}

/** postgres.js: the `sql` of `sql.begin(async (sql) => …)`. */
export interface PostgresJsTransaction {
  // biome-ignore lint/suspicious/noExplicitAny: its parameters have types of the package.
  unsafe(text: string, values?: any[]): PromiseLike<readonly unknown[]>;
}

export type CallerTransaction = PgClient | DrizzleTransaction | KyselyTransaction | PostgresJsTransaction;
