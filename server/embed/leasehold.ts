// Leasehold inside another program: start and stop, enqueue, the API as a router. Signals, the exit of the process and
// the console belong to the host, and several instances do not share any state.
import { Daemon } from '../daemon/daemon.ts';
import { readLiveDaemons } from '../daemon-registry/live-daemons.ts';
import type { Queryable } from '../database/database.ts';
import type { EventListener } from '../events/log/leasehold-event.ts';
import {
  type Enqueued,
  enqueueAllOrNone,
  enqueueInCallersTransaction,
  idempotencyConflict,
  type NewJob,
} from '../jobs/enqueue/enqueue.ts';
import { type JobRequest, jobRequest, toNewJob } from '../jobs/enqueue/job-request.ts';
import { linkJobs } from '../jobs/flows/after-request.ts';
import { withEnqueueSpan } from '../jobs/model/trace.ts';
import { eventName, notifyReceived, receiveEvent, type SentEvent, sentEvent } from '../jobs/received/receive-event.ts';
import { Problem, problem } from '../kernel/errors.ts';
import { invalidFields, parseFields } from '../kernel/fields.ts';
import { findJsonViolation } from '../kernel/json/json-violations.ts';
import { migrateEverything } from '../tenants/migrate-all.ts';
import type { Tenant } from '../tenants/tenant.ts';
import type {
  CallerTransaction,
  EnqueueOptions,
  EventReceipt,
  HostHandler,
  InputOf,
  JobHandle,
  JobItem,
  JobRef,
  Leasehold,
  LeaseholdOptions,
  LeaseholdProblem,
  RouterOptions,
  SendEventOptions,
  StopOptions,
  Tenants,
} from './api.ts';
import { queryableOf } from './caller-transaction.ts';
import { toDaemonOptions } from './options.ts';
import { HostTenants } from './tenants.ts';

/** Checks the options and loads the jobs. No connection is opened before `start`, or the first call that needs one. */
export async function createLeasehold(options: LeaseholdOptions): Promise<Leasehold> {
  const daemonOptions = await toDaemonOptions(options);
  return new EmbeddedLeasehold(new Daemon(daemonOptions), options.tenants ?? []);
}

/** True if the error means that a call was refused; its `code` says why. */
export function isProblem(error: unknown): error is LeaseholdProblem {
  return error instanceof Problem;
}

// How long an instance that was not started trusts the tenants that it has read.
const tenantsForMs = 5000;

class EmbeddedLeasehold implements Leasehold {
  readonly tenants: Tenants;
  readonly #daemon: Daemon;
  readonly #wanted: readonly string[];
  #starting: Promise<void> | undefined;
  #isRunning = false;
  #tenantsReadAt = Number.NEGATIVE_INFINITY;

  constructor(daemon: Daemon, wantedTenants: readonly string[]) {
    this.#daemon = daemon;
    this.#wanted = wantedTenants;
    this.tenants = new HostTenants(daemon);
  }

  async migrate(): Promise<void> {
    const { db, config, logger } = this.#daemon.context;
    await migrateEverything(db, { concurrency: config.migrateConcurrency, logger });
  }

  start(): Promise<void> {
    this.#starting ??= this.#start();
    return this.#starting;
  }

  async stop({ graceSeconds }: StopOptions = {}): Promise<void> {
    this.#isRunning = false;
    // Without a start, wake-ups for the last jobs may still have to be sent.
    await this.#daemon.context.notifications.stop();
    await this.#daemon.stop(graceSeconds === undefined ? undefined : graceSeconds * 1000);
  }

  async enqueue<J extends JobRef>(
    tenant: string,
    job: J,
    payload: InputOf<J>,
    options: EnqueueOptions = {},
  ): Promise<JobHandle> {
    const [handle] = await this.#enqueue(tenant, [toJobRequest(job, payload, options)], options.tx);
    return handle as JobHandle;
  }

  async enqueueMany<const J extends readonly JobRef[]>(
    tenant: string,
    jobs: { readonly [K in keyof J]: JobItem<J[K]> },
    options: Pick<EnqueueOptions, 'tx'> = {},
  ): Promise<JobHandle[]> {
    const items = jobs as readonly JobItem<JobRef>[];
    const requests = items.map(({ job, payload, ...own }) => toJobRequest(job, payload, own));
    return this.#enqueue(tenant, requests, options.tx);
  }

  async sendEvent(
    slug: string,
    name: string,
    data?: unknown,
    { tx, id }: SendEventOptions = {},
  ): Promise<EventReceipt> {
    const tenant = await this.#tenant(slug);
    const event = toSentEvent(name, data, id);
    const db = tx === undefined ? this.#daemon.db : queryableOf(tx, this.#daemon.db);
    const received = await receiveEvent(db, tenant.schema, event, actor);
    if (tx === undefined) this.#daemon.onEventReceived(tenant);
    else await notifyReceived(db, tenant);
    return received;
  }

  router(options: RouterOptions = {}): HostHandler {
    return this.#daemon.router(options) as HostHandler;
  }

  on(type: string, listener: EventListener): () => void {
    return this.#daemon.context.listeners.on(type, listener);
  }

  async #start(): Promise<void> {
    try {
      await this.#daemon.start();
      for (const slug of this.#wanted) await this.tenants.ensure(slug);
      this.#isRunning = true;
    } catch (error) {
      await this.#daemon.stop(0);
      throw error;
    }
  }

  async #enqueue(slug: string, requests: JobRequest[], tx: CallerTransaction | undefined): Promise<JobHandle[]> {
    const tenant = await this.#tenant(slug);
    const { db: own, handlers, queueLimit } = this.#daemon.context;
    const db = tx === undefined ? own.forTenant(tenant.schema) : queryableOf(tx, own);
    const known = { tenant, jobTypes: handlers, liveDaemons: () => readLiveDaemons(db) };
    const newJobs: NewJob[] = [];
    for (const request of requests) newJobs.push(await toNewJob(request, known));
    const items = newJobs.map((job, n) => ({ job, after: requests[n]?.after }));
    const refused = (await linkJobs(db, tenant.schema, items)).find((one) => one !== undefined);
    if (refused !== undefined) throw refused;
    await queueLimit.admit(tenant, newJobs, db);
    const about = { tenant: slug, type: requests[0]?.type ?? '', count: newJobs.length, traceparent: undefined };
    const enqueued = await withEnqueueSpan(about, (traceparent) => {
      for (const newJob of newJobs) newJob.traceparent = traceparent;
      if (tx === undefined) return this.#insert(tenant, newJobs);
      return insertInTransaction(db, tenant, newJobs);
    });
    return enqueued.map((one) => {
      if (one.kind === 'conflict') throw idempotencyConflict(one, 'idempotencyKey');
      const unique = one.kind === 'replayed' && one.unique !== undefined ? { unique: one.unique } : {};
      return { id: one.job.id, tenant: slug, type: one.job.type, replayed: one.kind === 'replayed', ...unique };
    });
  }

  async #insert(tenant: Tenant, newJobs: NewJob[]): Promise<Enqueued[]> {
    if (!mayConflictInPart(newJobs)) return this.#daemon.enqueue(tenant, newJobs, actor);
    const { db, signals } = this.#daemon.context;
    const enqueued = await enqueueAllOrNone(db.forTenant(tenant.schema), tenant.schema, newJobs, actor);
    signals.eventsWritten(tenant);
    signals.workAvailable(tenant, { enqueued });
    return enqueued;
  }

  async #tenant(slug: string): Promise<Tenant> {
    const { registry } = this.#daemon;
    const isFresh = this.#isRunning || performance.now() - this.#tenantsReadAt < tenantsForMs;
    if (!isFresh || registry.bySlug(slug) === undefined) {
      await registry.refresh();
      this.#tenantsReadAt = performance.now();
    }
    const tenant = registry.bySlug(slug);
    if (tenant === undefined) throw problem('NOT_FOUND', `There is no tenant ${JSON.stringify(slug)}.`);
    if (tenant.status === 'ACTIVE') return tenant;
    throw problem('TENANT_SUSPENDED', `The tenant is ${tenant.status}.`, { status: tenant.status });
  }
}

/** A key of one of the jobs may have been used for another request, and then none of them may be enqueued. */
function mayConflictInPart(newJobs: readonly NewJob[]): boolean {
  return newJobs.length > 1 && newJobs.some((job) => job.clientRequestId !== undefined);
}

async function insertInTransaction(tx: Queryable, tenant: Tenant, newJobs: NewJob[]): Promise<Enqueued[]> {
  if (!mayConflictInPart(newJobs)) return enqueueInCallersTransaction(tx, tenant, newJobs, actor);
  await tx.query('savepoint leasehold_enqueue');
  const enqueued = await enqueueInCallersTransaction(tx, tenant, newJobs, actor);
  const isWhole = enqueued.every((one) => one.kind !== 'conflict');
  await tx.query(`${isWhole ? 'release' : 'rollback to'} savepoint leasehold_enqueue`);
  return enqueued;
}

/** The actor in the events of jobs that the host enqueues. */
const actor = 'host';

// Converts the arguments of `enqueue` and `sendEvent` to the requests that clients send over HTTP.
function toJobRequest(job: JobRef, payload: unknown, options: EnqueueOptions): JobRequest {
  const { runAt } = options;
  return parseFields(jobRequest, {
    type: typeof job === 'string' ? job : job.type,
    payload: toJson(payload),
    target_id: options.targetId,
    priority: options.priority,
    queue: options.queue,
    run_at: runAt instanceof Date ? runAt.toISOString() : runAt,
    max_attempts: options.maxAttempts,
    retry: toRetryRequest(options.retry),
    timeout_seconds: options.timeoutSeconds,
    expires_in_seconds: options.expiresInSeconds,
    token_limit: options.tokenLimit,
    cost_units: options.costUnits,
    constraints: options.constraints,
    on_error: options.onError,
    on_drain: options.onDrain,
    webhook_url: options.webhookUrl,
    client_request_id: options.idempotencyKey,
    author: options.author,
    after: options.after?.map((one) => (typeof one === 'string' ? one : { job: one.job, on_failure: one.onFailure })),
    unique: options.unique,
  });
}

function toRetryRequest(retry: EnqueueOptions['retry']): JobRequest['retry'] {
  if (retry === undefined) return undefined;
  const { kind, delaySeconds, maxDelaySeconds, jitter, codes } = retry;
  return { kind, delay_seconds: delaySeconds, max_delay_seconds: maxDelaySeconds, jitter, codes };
}

/** Returns the value that the handler will get: dates as text, undefined left out. */
function toJson(value: unknown, field = 'payload'): unknown {
  if (value === undefined) return undefined;
  let json: unknown;
  try {
    json = JSON.parse(JSON.stringify(value) ?? 'null');
  } catch (error) {
    throw invalidFields([{ field, message: `is not JSON: ${(error as Error).message}` }]);
  }
  const violation = findJsonViolation(json);
  if (violation) throw invalidFields([{ ...violation, field: [field, violation.field].filter(Boolean).join('.') }]);
  return json;
}

function toSentEvent(name: string, data: unknown, id: string | undefined): SentEvent {
  return { name: parseFields(eventName, name, 'name'), ...parseFields(sentEvent, { data: toJson(data, 'data'), id }) };
}
