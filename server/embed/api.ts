// What programs that embed Leasehold see: types alone, of this package and of Node.
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { EventListener } from '../events/log/leasehold-event.ts';
import type { Priority, RetentionHook } from '../jobs/model/job-values.ts';
import type { BackoffPolicy } from '../kernel/backoff.ts';
import type { JobDefinition } from '../worker/handlers/define-job.ts';
import type { LeaseholdSettings } from './settings.ts';

export interface LeaseholdOptions {
  /** The Postgres to use: `postgres://user:password@host:5432/database`. */
  databaseUrl?: string | undefined;
  /** Instead of `databaseUrl`: a pool of `pg` whose address, user and encryption are used. Its connections are not. */
  pool?: HostPool | undefined;
  /** The jobs that this process runs: definitions, or a module or directory of modules that exports them. */
  jobs?: readonly JobDefinition[] | string | undefined;
  /** Tenants that `start` creates if they are missing. */
  tenants?: readonly string[] | undefined;
  settings?: LeaseholdSettings | undefined;
  /** Where log lines go. Default: warnings and errors, as JSON, to standard error; `false`: nowhere. */
  logger?: HostLogger | false | undefined;
  /** Called after jobs were marked as stale. An error is logged; the call is not repeated. */
  onStale?: RetentionHook | undefined;
  /** Called before jobs are deleted, to keep a copy. If it fails they stay, and it is called again later. */
  onDelete?: RetentionHook | undefined;
}

/** What is read of a `pg.Pool`. */
export interface HostPool {
  readonly options: object;
}

export interface Leasehold {
  readonly tenants: Tenants;
  /** Brings the schema of the database, and of every tenant, to this version. `start` does it as well. */
  migrate(): Promise<void>;
  /**
   * Migrates the database, creates missing tenants and runs jobs. Waits for a database that cannot be reached; `stop`
   * ends the wait. A second call returns the promise of the first.
   */
  start(): Promise<void>;
  /**
   * Claims no more jobs, lets running ones continue for the grace, pauses or requeues the rest, and closes all
   * connections. A second call ends the grace. Cannot be started again.
   */
  stop(options?: StopOptions): Promise<void>;
  /**
   * One job. With `tx` it exists if and when that transaction commits. Works without `start`, for a process that runs no
   * jobs, once the tenant exists.
   */
  enqueue<J extends JobRef>(tenant: string, job: J, payload: InputOf<J>, options?: EnqueueOptions): Promise<JobHandle>;
  /** Several jobs, all or none, in their order: `[{ job, payload, targetId }, …]`. */
  enqueueMany<const J extends readonly JobRef[]>(
    tenant: string,
    jobs: { readonly [K in keyof J]: JobItem<J[K]> },
    options?: Pick<EnqueueOptions, 'tx'>,
  ): Promise<JobHandle[]>;
  /**
   * An event for the jobs that wait for it with `waitForEvent`. With `tx` it is sent if and when that transaction
   * commits. With the same `id` it is received once, and the first receipt is returned.
   */
  sendEvent(tenant: string, name: string, data?: unknown, options?: SendEventOptions): Promise<EventReceipt>;
  /** The API and the dashboard, to be mounted below a path: `app.use('/leasehold', leasehold.router())`. */
  router(options?: RouterOptions): HostHandler;
  /**
   * Calls `listener` for events of this type, or of every type for `*`, of all tenants, from about now until `stop`:
   * whichever process caused them, in the order of each job. Returns how to remove it.
   */
  on(type: string, listener: EventListener): () => void;
}

export interface Tenants {
  /** The key has every scope of the tenant and is shown only here. */
  create(slug: string, settings?: TenantOptions): Promise<{ tenant: TenantInfo; key: string }>;
  /** Creates the tenant if it is missing. The key of a tenant that is made here is not kept. */
  ensure(slug: string, settings?: TenantOptions): Promise<TenantInfo>;
  list(): Promise<TenantInfo[]>;
  /** A field that is given replaces, null removes, the others stay. */
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

/** How much of a unit jobs may use; see docs/budgets.md. */
interface BudgetOptions {
  unit: string;
  limit: number;
  per: 'job' | 'day' | 'target_day';
  type?: string | undefined;
}

/** Rate and concurrency of the jobs that it counts; see docs/limits.md. */
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
  /** How long running jobs may continue before they are paused or requeued. Default: `shutdownGracePeriodSeconds`. */
  graceSeconds?: number | undefined;
}

/** A job type by its definition, which types the payload, or by its name. */
export type JobRef = string | { readonly type: string; readonly types?: { readonly input: unknown } };

/** What a job of this definition is enqueued with. */
export type InputOf<J> = J extends { types?: { readonly input: infer I } } ? I : unknown;

export interface EnqueueOptions {
  /** A transaction of yours: a `pg` client after BEGIN, or the transaction of drizzle, Kysely or postgres.js. */
  tx?: CallerTransaction | undefined;
  /** The lane of the job. Without one it runs independently of all others. */
  targetId?: string | undefined;
  priority?: Priority | undefined;
  queue?: string | undefined;
  /** Not before this time. */
  runAt?: Date | string | undefined;
  maxAttempts?: number | undefined;
  /** `codes`: error codes that count as recoverable. */
  retry?: (Partial<BackoffPolicy> & { codes?: string[] }) | undefined;
  timeoutSeconds?: number | undefined;
  /** If it has not started by then, it fails with EXPIRED. */
  expiresInSeconds?: number | undefined;
  tokenLimit?: number | undefined;
  costUnits?: number | undefined;
  constraints?: Record<string, unknown> | undefined;
  onError?: 'block' | 'continue' | undefined;
  onDrain?: 'pause' | 'requeue' | undefined;
  webhookUrl?: string | undefined;
  /** The same key enqueues the job once; a repetition returns the first job. */
  idempotencyKey?: string | undefined;
  /** At most one job of the type holds the key at a time. */
  unique?: UniqueOptions | undefined;
  /** Who asks for it, for people who read its history. */
  author?: string | undefined;
  /** Ids or idempotency keys of jobs that have to succeed first; also of other jobs of the same `enqueueMany`. */
  after?: readonly (string | { job: string; onFailure?: 'hold' | 'cancel' | 'continue' | undefined })[] | undefined;
}

export interface UniqueOptions {
  key: string;
  /** How long a job holds the key: until it first starts, until it has ended (default), or for this many seconds. */
  until?: 'started' | 'finished' | number | undefined;
  /** If the key is held: `skip` (default) changes nothing, `replace` gives the job that waits the new payload, `debounce` also the new `runAt`. */
  conflict?: 'skip' | 'replace' | 'debounce' | undefined;
}

export interface SendEventOptions {
  /** A transaction of yours, as for `enqueue`. */
  tx?: CallerTransaction | undefined;
  /** Your name for this event. */
  id?: string | undefined;
}

export interface EventReceipt {
  /** The given id, else a generated one. */
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
  /** A job with this idempotency key, or unique key, existed already, and is this one. */
  replayed: boolean;
  /** It holds the unique key of the request: what the request did to it. */
  unique?: 'skipped' | 'replaced' | 'debounced';
}

export type Scope = 'read' | 'enqueue' | 'control' | 'worker' | 'admin';

/** Who calls, as the host says. */
export interface HostCaller {
  /** The slug of the tenant. Without one the caller is an operator, for /api/admin only. */
  tenant?: string | undefined;
  /** Default: all of them. */
  scopes?: readonly Scope[] | undefined;
  /** For events and the audit: `user:ada`. */
  actor: string;
}

type MaybeCaller = HostCaller | undefined | null;

export interface RouterOptions {
  /**
   * Who calls; undefined refuses the request with 401. Without it callers need an API key, or a session of the
   * dashboard. A method, so that it may name the request's type of the host's framework.
   */
  authorize?(request: IncomingMessage): MaybeCaller | Promise<MaybeCaller>;
  /** Refuses every change. */
  readOnly?: boolean | undefined;
}

/** For Express, Connect, or `http.createServer`. */
export type HostHandler = (request: IncomingMessage, response: ServerResponse, next: (error?: unknown) => void) => void;

/** An error of a call that was refused. `code` is one of those of the HTTP API. */
export interface LeaseholdProblem extends Error {
  readonly code: string;
  readonly extra: Record<string, unknown>;
}

export type LogLine = (fields: object, message?: string) => void;

/** As pino, bunyan and `console` have it: fields first, then a constant message. */
export interface HostLogger {
  debug?: LogLine;
  info: LogLine;
  warn: LogLine;
  error: LogLine;
}

export type Rows = { rows: unknown } | readonly unknown[];

/** `pg`: a client on which BEGIN was sent. So is anything else with this method. */
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
