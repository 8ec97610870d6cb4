// The children of a job: enqueued and collected in its tenant's schema, fenced by the lease of the parent.
import { readLiveDaemons } from '../../daemon-registry/live-daemons.ts';
import type { Database } from '../../database/database.ts';
import { statement } from '../../database/sql.ts';
import { retryConflicts } from '../../database/sql-errors.ts';
import { lockHeld } from '../../jobs/claim/lease.ts';
import type { CommitSignals } from '../../jobs/commit-signals.ts';
import { enqueueIn, type NewJob } from '../../jobs/enqueue/enqueue.ts';
import { payloadLimitBytes } from '../../jobs/enqueue/enqueue-limits.ts';
import { type JobRequest, type RequestContext, toNewJob, uniqueRequest } from '../../jobs/enqueue/job-request.ts';
import type { JobTypes } from '../../jobs/enqueue/job-types.ts';
import { afterField, linkJobs } from '../../jobs/flows/after-request.ts';
import {
  childrenState,
  collectChildren,
  countChildBytes,
  gate,
  openChildren,
} from '../../jobs/flows/fenced-children.ts';
import { resolveDependencies } from '../../jobs/flows/resolve-dependencies.ts';
import type { Job } from '../../jobs/model/job.ts';
import { type JobErrorCode, jobError } from '../../jobs/model/job-errors.ts';
import { Pace } from '../../kernel/clock.ts';
import type { Config } from '../../kernel/config.ts';
import { Problem } from '../../kernel/errors.ts';
import { parseFields } from '../../kernel/fields.ts';
import type { Tenant } from '../../tenants/tenant.ts';
import type { AfterJob, ChildOptions, EnqueuedChild } from '../durable-context.ts';
import { Fatal, Recoverable } from '../handler-errors.ts';
import type { ChildrenAnswer, ChildrenRequest } from '../step-store.ts';
import { toStorable } from '../storable.ts';

/** The attempt that makes the calls, in a daemon or a remote worker. */
export interface DurableRun {
  db: Database;
  tenant: Tenant;
  job: Pick<Job, 'id' | 'author' | 'traceparent' | 'leaseOwner'>;
  leaseId: string;
  config: Pick<Config, 'resultLimitBytes'>;
  /** Checks the payloads of children and applies the defaults of their types. */
  jobTypes: JobTypes;
  /** Refuses children beyond the tenant's queue limit. */
  admit(children: NewJob[]): Promise<void>;
  /** Undefined in a thread or a test without a daemon. */
  signals?: CommitSignals | undefined;
}

/** Returns undefined if the lease no longer owns the parent, and nothing was written. */
export async function waitForChildrenIn(
  run: DurableRun,
  request: ChildrenRequest,
  actor: string,
): Promise<ChildrenAnswer | undefined> {
  const { db, tenant, job, leaseId, config } = run;
  const { name } = request.call;
  const held = { jobId: job.id, leaseId };
  if (request.open !== undefined && !(await open(run, request, actor))) return undefined;
  const state = await childrenState(db, tenant.schema, held, name);
  const isOver = state.unfinished === 0 || (state.failed !== null && request.onFailure === 'stop');
  if (!isOver) return state;
  // Edges of children that had ended before the call, for which no event follows.
  await db.transaction((tx) => resolveDependencies(tx, tenant.schema, { ended: [], waiting: [job.id] }));
  if (state.unfinished > 0) return state;
  const { resultLimitBytes: limit } = config;
  const bytes = state.bytes > limit ? state.bytes : await countChildBytes(db, tenant.schema, job.id, name);
  if (bytes > limit) throw tooLarge(name, bytes, limit);
  return { ...state, ends: await collectChildren(db, tenant.schema, job.id, name) };
}

async function open(
  run: DurableRun,
  { call, open: wanted, ...options }: ChildrenRequest,
  actor: string,
): Promise<boolean> {
  const { db, tenant, job, leaseId } = run;
  const jobs = wanted !== undefined && 'jobs' in wanted ? wanted.jobs : [];
  const children: NewJob[] = [];
  const pace = new Pace();
  for (const [n, { type, payload = {}, ...child }] of jobs.entries()) {
    const key = `fan:${call.name}:${child.key ?? n}`;
    children.push(await toChild(run, { key, type, payload, options: child, actor }));
    await pace.pause();
  }
  await admitChildren(run, children);
  try {
    const enqueued = await retryConflicts(() =>
      db.transaction(async (tx) => {
        const made = await enqueueIn(tx, tenant.schema, gate(children, call.name, options), actor);
        const ids = wanted !== undefined && 'ids' in wanted ? wanted.ids : made.map((one) => one.job.id);
        // Last, because finishing the parent locks its lane before its row.
        if (await openChildren(tx, tenant.schema, { jobId: job.id, leaseId }, call, ids, options)) return made;
        throw new LeaseLost();
      }),
    );
    run.signals?.jobsWritten(tenant, enqueued);
    run.signals?.dependenciesWritten(tenant);
    return true;
  } catch (error) {
    if (error instanceof LeaseLost) return false;
    throw error;
  }
}

function tooLarge(name: string, bytes: number, limit: number): Fatal {
  const { code, message } = jobError(
    'RESULT_TOO_LARGE',
    `The results of the children of "${name}" have ${bytes} bytes; at most ${limit} are allowed. Let them return less.`,
  );
  return new Fatal(message, { code });
}

/** A child is identified by its parent and its key: a retry finds the child of an earlier attempt. */
interface ChildRequest {
  key: string;
  type: string;
  payload: unknown;
  options: ChildOptions;
  actor: string;
}

// Together with the parent's id it must fit into an index.
const maxKeyLength = 300;

class LeaseLost extends Error {}

const heldStatement = statement(`with ${lockHeld()} select id from held`);

/** Returns undefined if the parent's lease is lost, and nothing was enqueued. */
export async function enqueueChild(run: DurableRun, request: ChildRequest): Promise<EnqueuedChild | undefined> {
  const { db, tenant, job, leaseId } = run;
  const child = await toChild(run, request);
  await admitChildren(run, [child]);
  try {
    const enqueued = await retryConflicts(() =>
      db.transaction(async (tx) => {
        const [enqueued] = await enqueueIn(tx, tenant.schema, [child], request.actor);
        // Last, because finishing the parent locks its lane before its row.
        const held = await heldStatement.query(tx, tenant.schema, { jobId: job.id, leaseId });
        if (held.length === 0 || enqueued === undefined) throw new LeaseLost();
        return enqueued;
      }),
    );
    run.signals?.jobsWritten(tenant, [enqueued]);
    const unique = enqueued.kind === 'replayed' ? enqueued.unique : undefined;
    return { id: enqueued.job.id, ...(unique !== undefined && { unique }) };
  } catch (error) {
    if (error instanceof LeaseLost) return undefined;
    throw error;
  }
}

/** A full queue is not the parent's error: it is retried, unless its handler catches the error and waits. */
async function admitChildren(run: DurableRun, children: NewJob[]): Promise<void> {
  try {
    await run.admit(children);
  } catch (error) {
    if (!(error instanceof Problem) || error.code !== 'QUEUE_FULL') throw error;
    throw new Recoverable(error.message, { code: 'QUEUE_FULL' satisfies JobErrorCode, details: error.extra });
  }
}

async function toChild(run: DurableRun, { key, type, payload, options }: ChildRequest): Promise<NewJob> {
  const { db, tenant, jobTypes, job } = run;
  if (key.length > maxKeyLength) throw new RangeError(`the key of a child has at most ${maxKeyLength} characters`);
  const stored = toStorable(payload, payloadLimitBytes, 'The payload of a child');
  if (!stored.ok) throw new Fatal(stored.error.message, { code: 'INVALID_CHILD' satisfies JobErrorCode });
  const known = { tenant, jobTypes, liveDaemons: () => readLiveDaemons(db) };
  const request: JobRequest = {
    type,
    payload: stored.value,
    queue: options.queue,
    target_id: options.targetId,
    priority: options.priority,
    run_at: options.runAt,
    max_attempts: options.maxAttempts,
    author: job.author ?? undefined,
    unique: options.unique && parseFields(uniqueRequest, options.unique, 'unique'),
  };
  const child: NewJob = {
    ...(await toNewJob(request, options.queue === undefined ? known : forRemoteWorkers(known))),
    traceparent: job.traceparent ?? undefined,
    parentId: job.id,
    clientRequestId: `child:${job.id}:${key}`,
  };
  if (options.after === undefined) return child;
  const after = parseFields(afterField, options.after.map(toEdgeRequest), 'after');
  const [refused] = await linkJobs(db, tenant.schema, [{ job: child, after }]);
  if (refused !== undefined) throw refused;
  return child;
}

/** A queue determines who runs the child, so its type need not be known here. */
function forRemoteWorkers({ tenant, ...known }: RequestContext): RequestContext {
  const settings = { ...tenant.settings, remote_job_types: ['*'] };
  const jobTypes: JobTypes = {
    types: () => [],
    has: () => false,
    checkPayload: (_, payload) => ({ ok: true, payload }),
    defaults: () => ({}),
  };
  return { ...known, tenant: { ...tenant, settings }, jobTypes };
}

function toEdgeRequest(edge: AfterJob): unknown {
  return typeof edge === 'string' ? edge : { job: edge.job, on_failure: edge.onFailure };
}
