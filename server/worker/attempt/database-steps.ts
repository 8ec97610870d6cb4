// The durable calls of an attempt in its tenant's schema. Every write is fenced; a refused one ends the attempt with
// `leaseLost`.
import { readLiveDaemons } from '../../daemons/live-daemons.ts';
import { retryConflicts } from '../../database/sql-errors.ts';
import { type EventWait, openEventWait, type WantedEvent } from '../../jobs/attempt/event-waits.ts';
import {
  loadSteps,
  type OpenWait,
  openSleep,
  type StepCall,
  type StepEnd,
  type StoredStep,
  saveSteps,
  type WaitEnd,
} from '../../jobs/attempt/steps.ts';
import { isHeld } from '../../jobs/claim/lease.ts';
import { enqueueIn, type NewJob } from '../../jobs/enqueue/enqueue.ts';
import { payloadLimitBytes } from '../../jobs/enqueue/enqueue-limits.ts';
import { toNewJob, uniqueRequest } from '../../jobs/enqueue/job-request.ts';
import { childrenState, collectChildren, gate, openChildren } from '../../jobs/flows/fenced-children.ts';
import { resolveDependencies } from '../../jobs/flows/resolve-dependencies.ts';
import { type JobErrorCode, jobError } from '../../jobs/model/job-errors.ts';
import type { AwaitedCalls, Waiting } from '../../jobs/model/waiting.ts';
import { openQuestion, type QuestionState } from '../../jobs/questions/ask.ts';
import { closeQuestionsOf } from '../../jobs/questions/close-questions.ts';
import type { AskedQuestion } from '../../jobs/questions/question-request.ts';
import { Problem } from '../../kernel/errors.ts';
import { parseFields } from '../../kernel/fields.ts';
import { Fatal, Recoverable } from '../handlers/handler-errors.ts';
import type { ChildOptions, EnqueuedChild } from '../handlers/job-context.ts';
import type { ChildrenAnswer, ChildrenRequest, HandlerRun, StepStore } from './handler-run.ts';
import { JobStopped } from './stop-reason.ts';
import { toStorable } from './storable.ts';

export class DatabaseSteps implements StepStore {
  readonly #run: HandlerRun;

  constructor(run: HandlerRun) {
    this.#run = run;
  }

  load(): Promise<StoredStep[]> {
    const { db, tenant } = this.#run;
    return this.#fenced(() => loadSteps(db, tenant.schema, this.#held));
  }

  openSleep(call: StepCall, end: WaitEnd): Promise<OpenWait> {
    const { db, tenant } = this.#run;
    return this.#fenced(() => openSleep(db, tenant.schema, this.#held, call, end));
  }

  children(request: ChildrenRequest): Promise<ChildrenAnswer> {
    return this.#fenced(() => waitForChildrenIn(this.#run, request, this.#actor));
  }

  openEventWait(call: StepCall, wanted: WantedEvent): Promise<EventWait> {
    const { db, tenant } = this.#run;
    return this.#fenced(() => openEventWait(db, tenant.schema, this.#held, call, wanted, this.#actor));
  }

  async save(ends: readonly StepEnd[]): Promise<void> {
    const { db, tenant, config } = this.#run;
    for (const { name, result } of ends) {
      const stored = toStorable(result, config.resultLimitBytes, `The result of step ${name}`);
      if (!stored.ok) throw new Fatal(stored.error.message, { code: stored.error.code });
    }
    await this.#fenced(() => saveSteps(db, tenant.schema, this.#held, ends, this.#actor));
  }

  async timeOut(name: string, seconds: number): Promise<void> {
    this.#run.stop({ kind: 'timedOut', afterSeconds: seconds, phase: name });
  }

  async suspend(waiting: Waiting, leftMs: number, awaited?: AwaitedCalls): Promise<void> {
    this.#run.stop({ kind: 'suspended', waiting, leftMs, awaited });
  }

  openQuestion(call: StepCall, question: AskedQuestion): Promise<QuestionState> {
    const { db, tenant, config } = this.#run;
    const timeout_seconds = question.timeout_seconds ?? config.questionTimeoutSeconds;
    return this.#fenced(() =>
      openQuestion(db, tenant.schema, this.#held, call, { ...question, timeout_seconds }, this.#actor),
    );
  }

  async closeQuestions(): Promise<void> {
    const { db, tenant } = this.#run;
    await this.#fenced(() => closeQuestionsOf(db, tenant.schema, this.#held, this.#actor));
  }

  async #fenced<T>(write: () => Promise<T | undefined>): Promise<T> {
    const written = (await write()) ?? ((await this.#isHeld()) ? await write() : undefined);
    if (written !== undefined) return written;
    this.#run.stop({ kind: 'leaseLost' });
    throw new JobStopped({ kind: 'leaseLost' });
  }

  /** While a tenant moves between nodes a fenced write can miss a row that exists: check, and write again. */
  #isHeld(): Promise<boolean> {
    return isHeld(this.#run.db, this.#run.tenant.schema, this.#held);
  }

  get #actor(): string {
    const { job, config } = this.#run;
    return `worker:${job.leaseOwner ?? config.workerId}`;
  }

  get #held() {
    return { jobId: this.#run.job.id, leaseId: this.#run.leaseId };
  }
}

// Enqueues and collects the children of a durable call in the tenant's schema.

/** Undefined: the lease no longer owns the parent, and nothing was written. */
async function waitForChildrenIn(
  run: HandlerRun,
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
  // Edges of children that had ended before the call: no event follows.
  await db.transaction((tx) => resolveDependencies(tx, tenant.schema, { ended: [], waiting: [job.id] }));
  if (state.unfinished > 0) return state;
  if (state.bytes > config.resultLimitBytes) throw tooLarge(name, state.bytes, config.resultLimitBytes);
  return { ...state, ends: await collectChildren(db, tenant.schema, job.id, name) };
}

async function open(
  run: HandlerRun,
  { call, open: wanted, ...options }: ChildrenRequest,
  actor: string,
): Promise<boolean> {
  const { db, tenant, job, leaseId } = run;
  const jobs = wanted !== undefined && 'jobs' in wanted ? wanted.jobs : [];
  const requests = jobs.map(({ type, payload = {}, ...child }, n): ChildRequest => {
    return { key: `fan:${call.name}:${child.key ?? n}`, type, payload, options: child, actor };
  });
  const children = await Promise.all(requests.map((request) => toChild(run, request)));
  await admitChildren(run, children);
  try {
    const enqueued = await retryConflicts(() =>
      db.transaction(async (tx) => {
        const made = await enqueueIn(tx, tenant.schema, gate(children, call.name, options), actor);
        const ids = wanted !== undefined && 'ids' in wanted ? wanted.ids : made.map((one) => one.job.id);
        // Last: finishing the parent locks its lane before its row.
        if (await openChildren(tx, tenant.schema, { jobId: job.id, leaseId }, call, ids, options)) return made;
        throw new LeaseLost();
      }),
    );
    run.onEnqueued?.(enqueued);
    run.onDependencies?.();
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

// Jobs that a handler enqueues in its own tenant. A child is identified by its parent and its key, so that a retry
// finds the child of an earlier attempt instead of creating another.

interface ChildRequest {
  key: string;
  type: string;
  payload: unknown;
  options: ChildOptions;
  actor: string;
}

// With the parent's id it has to fit into an index.
const maxKeyLength = 300;

class LeaseLost extends Error {}

/** Undefined: the parent's lease is lost, and nothing was enqueued. */
export async function enqueueChild(run: HandlerRun, request: ChildRequest): Promise<EnqueuedChild | undefined> {
  const { db, tenant, job, leaseId } = run;
  const child = await toChild(run, request);
  await admitChildren(run, [child]);
  try {
    const enqueued = await retryConflicts(() =>
      db.transaction(async (tx) => {
        const [enqueued] = await enqueueIn(tx, tenant.schema, [child], request.actor);
        // Last: finishing the parent locks its lane before its row.
        const held = await tx.query(
          `select id from ${tenant.schema}.jobs where id = $1 and lease_id = $2 and status = 'RUNNING' for share`,
          [job.id, leaseId],
        );
        if (held.length === 0 || enqueued === undefined) throw new LeaseLost();
        return enqueued;
      }),
    );
    run.onEnqueued?.([enqueued]);
    const unique = enqueued.kind === 'replayed' ? enqueued.unique : undefined;
    return { id: enqueued.job.id, ...(unique !== undefined && { unique }) };
  } catch (error) {
    if (error instanceof LeaseLost) return undefined;
    throw error;
  }
}

/** A full queue is not the parent's error: it is retried, unless its handler catches the error and waits. */
async function admitChildren(run: HandlerRun, children: NewJob[]): Promise<void> {
  try {
    await run.admit(children);
  } catch (error) {
    if (!(error instanceof Problem) || error.code !== 'QUEUE_FULL') throw error;
    throw new Recoverable(error.message, { code: 'QUEUE_FULL' satisfies JobErrorCode, details: error.extra });
  }
}

async function toChild(run: HandlerRun, request: ChildRequest): Promise<NewJob> {
  const { db, tenant, jobTypes, job } = run;
  const { type, payload, options } = request;
  if (request.key.length > maxKeyLength)
    throw new RangeError(`the key of a child has at most ${maxKeyLength} characters`);
  const stored = toStorable(payload, payloadLimitBytes, 'The payload of a child');
  if (!stored.ok) throw new Fatal(stored.error.message, { code: 'INVALID_CHILD' satisfies JobErrorCode });
  const child = await toNewJob(
    {
      type,
      payload: stored.value,
      target_id: options.targetId,
      priority: options.priority,
      run_at: options.runAt,
      max_attempts: options.maxAttempts,
      author: job.author ?? undefined,
      unique: options.unique && parseFields(uniqueRequest, options.unique, 'unique'),
    },
    { tenant, jobTypes, liveDaemons: () => readLiveDaemons(db) },
  );
  return {
    ...child,
    traceparent: job.traceparent ?? undefined,
    parentId: job.id,
    clientRequestId: `child:${job.id}:${request.key}`,
  };
}
