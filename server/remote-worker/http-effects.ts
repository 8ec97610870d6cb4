// The durable calls of a run over the scheduler API. Every request is fenced by the lease and may be repeated, so a
// request without an answer is sent again while the lease lasts.
import type { ChildOptions, EnqueuedChild } from '../durable/durable-context.ts';
import { Fatal, Recoverable } from '../durable/handler-errors.ts';
import type { ChildrenAnswer, DurableEffects, LogLevel, StepStore } from '../durable/step-store.ts';
import { requestedStop, type StopReason, throwIfStopped } from '../durable/stop-reason.ts';
import type { EventWait } from '../jobs/attempt/event-waits.ts';
import type { StepCall, StoredStep } from '../jobs/attempt/steps.ts';
import type { ChildEnd } from '../jobs/flows/fenced-children.ts';
import { sumOf, type Units } from '../jobs/model/job-budget.ts';
import { foreverMs } from '../jobs/model/waiting.ts';
import type { QuestionState } from '../jobs/questions/ask.ts';
import { endWaiting, type HeldLease, lose, loseIfExpired, own, stop } from './held-lease.ts';
import { type Answer, pause, type SchedulerApi, Unreachable } from './scheduler-api.ts';

const retryMs = 500;
// A server that fails to answer this request repeatedly will not succeed with it later.
const maxServerErrors = 20;

export class HttpEffects implements DurableEffects {
  readonly #api: SchedulerApi;
  readonly #held: HeldLease;
  readonly #log: (message: string, fields: Record<string, unknown>) => void;

  constructor(api: SchedulerApi, held: HeldLease, log: (message: string, fields: Record<string, unknown>) => void) {
    this.#api = api;
    this.#held = held;
    this.#log = log;
  }

  readonly steps: StepStore = {
    load: async () => {
      const calls: Answer['body'][] = [];
      for (let after: string | null = ''; ; ) {
        const answer = await this.#loadPart(after);
        calls.push(...answer.calls);
        after = answer.next ?? null;
        if (after === null)
          return { steps: calls.sort(byPosition).map(toStoredStep), stop: toStop(answer.cancel_intent) };
      }
    },
    save: async (changes) => {
      // A step that has ended is stored, also when the run has to stop: it is not made again.
      const { cancel_intent: intent } = await this.#post('steps', { steps: changes }, 'alsoStopped');
      return toStop(intent);
    },
    stop: async ({ kind }) => stop(this.#held, kind === 'paused' ? 'pause' : 'cancel'),
    openSleep: async (call, end) => {
      const wanted = 'until' in end ? end : { seconds: end.ms / 1000 };
      const { until, left_ms: leftMs } = await this.#post('sleep', { ...call, ...wanted, suspend: false });
      return { until, leftMs };
    },
    children: async ({ call, open, onFailure, concurrency }) => {
      const wanted =
        open === undefined
          ? {}
          : 'ids' in open
            ? { job_ids: open.ids }
            : { jobs: open.jobs.map(({ type, payload, ...options }) => childToApi(type, payload, options)) };
      const more = { on_failure: onFailure, concurrency, suspend: false };
      return toChildrenAnswer(await this.#post('children', { ...call, ...wanted, ...more }));
    },
    openEventWait: async (call, { event, match, ms }) => {
      const wanted = { event, match: match ?? undefined, timeout_seconds: ms === null ? undefined : ms / 1000 };
      return toEventWait(await this.#post('event', { ...call, ...wanted, suspend: false }));
    },
    openQuestion: async (call: StepCall, question) =>
      toQuestionState(await this.#post('ask', { ...question, ...call, suspend: false })),
    closeQuestions: async () => {
      this.#held.closesQuestions = true;
    },
    suspend: async (waiting, _leftMs, awaited) => {
      this.#held.suspending = true;
      await this.#post('suspend', {
        call: waiting.step,
        calls: awaited?.steps,
        until: awaited === undefined ? waiting.until : awaited.until,
        release_lane: waiting.lane === 'released',
      });
      endWaiting(this.#held);
    },
    timeOut: async () => stop(this.#held, 'timeout'),
  };

  log(level: LogLevel, message: string, data: Record<string, unknown> | undefined): void {
    this.#log(message, { level, ...data });
  }

  async enqueue(key: string, type: string, payload: unknown, options: ChildOptions): Promise<EnqueuedChild> {
    const { key: _, ...child } = childToApi(type, payload, options);
    const { job_id: id, unique } = await this.#post('enqueue', { ...child, key });
    return { id, ...(unique !== null && { unique }) };
  }

  /** The amounts are totals, so that a request whose answer was lost can be sent again. */
  async addUsage(usage: Units): Promise<void> {
    const held = this.#held;
    for (const [unit, amount] of Object.entries(usage)) held.usage[unit] = sumOf(held.usage[unit], amount);
    const { job, budget_spent: spent } = await this.#post('heartbeat', usageToApi(held));
    if (spent !== null) stop(held, 'budget');
    else if (job.cancel_requested) stop(held, job.cancel_intent);
  }

  // biome-ignore lint/suspicious/noExplicitAny: JSON from the server.
  async #loadPart(after: string): Promise<any> {
    try {
      return await this.#post('calls', { after });
    } catch (error) {
      // A daemon of an older version does not know the field, and answers with all calls.
      if (after === '' && error instanceof Fatal && error.code === 'INVALID_FIELD') return this.#post('calls', {});
      throw error;
    }
  }

  // biome-ignore lint/suspicious/noExplicitAny: JSON from the server.
  #post(call: string, body: object, when?: 'alsoStopped'): Promise<any> {
    const path = `/lease/${this.#held.leaseId}/${call}`;
    return this.#ask(() => this.#api.post(path, { ...own(this.#held), ...body }), when);
  }

  async #ask(send: () => Promise<Answer>, when?: 'alsoStopped'): Promise<Answer['body']> {
    const held = this.#held;
    let serverErrors = 0;
    for (;;) {
      loseIfExpired(held);
      if (held.lost || when === undefined) throwIfStopped(held.stopCalls.signal);
      const answer = await send().catch((error: unknown) => {
        if (error instanceof Unreachable && error.status === 500) serverErrors += 1;
        return undefined;
      });
      if (answer?.status === 200) return answer.body;
      if (answer !== undefined && isLost(answer)) lose(held);
      else if (answer !== undefined) throw toError(answer);
      else if (serverErrors >= maxServerErrors) throw new Recoverable('The server cannot answer the call.');
      else await pause(retryMs, held.stopCalls.signal);
    }
  }
}

/** The usage that a heartbeat sends. */
export function usageToApi({ usage }: HeldLease): { tokens_used?: number; usage?: Units } {
  const { tokens = 0, ...units } = usage;
  return { ...(tokens > 0 && { tokens_used: tokens }), ...(Object.keys(units).length > 0 && { usage: units }) };
}

function isLost({ status, body }: Answer): boolean {
  return status === 404 || (status === 409 && body?.code === 'LEASE_LOST');
}

/** A refusal is final, except if the queue is full now. */
function toError({ body }: Answer): Error {
  const message = body?.detail ?? 'The server refused the call.';
  if (body?.code === 'QUEUE_FULL') return new Recoverable(message, { code: 'QUEUE_FULL' });
  return new Fatal(message, { code: body?.code_of_job ?? body?.code ?? 'REFUSED' });
}

function childToApi(type: string, payload: unknown, options: ChildOptions) {
  return {
    job_type: type,
    payload,
    addon_id: options.queue,
    target_id: options.targetId,
    priority: options.priority,
    run_at: options.runAt,
    max_attempts: options.maxAttempts,
    unique: options.unique,
    after: options.after?.map((edge) =>
      typeof edge === 'string' ? edge : { job: edge.job, on_failure: edge.onFailure },
    ),
    key: options.key,
  };
}

/** A daemon of an older version does not return it. */
function toStop(intent: 'pause' | 'cancel' | null | undefined): StopReason | undefined {
  return requestedStop({ cancelIntent: intent ?? null, cancelDetail: null });
}

function byPosition(a: Answer['body'], b: Answer['body']): number {
  return a.position - b.position;
}

function toStoredStep({ until, left_ms: leftMs, ...step }: Answer['body']): StoredStep {
  return { ...step, waitsUntil: until, leftMs };
}

function toChildrenAnswer({ total, unfinished, failed, children }: Answer['body']): ChildrenAnswer {
  return {
    total,
    unfinished,
    bytes: 0,
    failed: failed && toChildEnd(failed),
    ...(children !== null && { ends: children.map(toChildEnd) }),
  };
}

function toChildEnd({ job_id: id, job_type: type, status, error, result }: Answer['body']): ChildEnd {
  return { id, type, status, error, result };
}

function toEventWait({ status, event, until, left_ms: leftMs }: Answer['body']): EventWait {
  if (status !== 'over') return { kind: 'open', until: until ?? undefined, leftMs: leftMs ?? foreverMs };
  if (event === null) return { kind: 'timedOut' };
  const { received_at: receivedAt, ...received } = event;
  return { kind: 'received', event: { ...received, receivedAt } };
}

function toQuestionState(body: Answer['body']): QuestionState {
  const { status, question_id: questionId, expires_at: until, left_ms: leftMs, answer, action, error } = body;
  if (status === 'answered') return { status: 'completed', result: { answer, ...(action !== null && { action }) } };
  if (status === 'failed') return { status: 'failed', error };
  return { status: 'open', questionId, until, leftMs, wakeMs: leftMs };
}
