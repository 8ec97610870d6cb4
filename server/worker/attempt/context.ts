// The context of a handler. Its members, functions included, are created on first use: a job that uses nothing pays
// nothing. They may be destructured: `({ payload, progress, sleep }) => …`.
import { checkUsage, type Units } from '../../jobs/model/job-budget.ts';
import type { JobErrorCode } from '../../jobs/model/job-errors.ts';
import { type Duration, parseDuration } from '../../kernel/clock.ts';
import type { AskOptions } from '../handlers/ask-options.ts';
import type { JobDefinition } from '../handlers/define-job.ts';
import { Fatal } from '../handlers/handler-errors.ts';
import type {
  ChildJob,
  ChildOptions,
  ChildrenOptions,
  EnqueuedChild,
  EventWaitOptions,
  FanOutOptions,
  JobContext,
  JobInfo,
  Lease,
  LogFunction,
  ReceivedEvent,
  SleepOptions,
  StepContext,
  StepOptions,
  WaitForEvent,
} from '../handlers/job-context.ts';
import { askPerson } from './asking.ts';
import { DurableCalls } from './durable-calls.ts';
import { fanOut, waitForChildren } from './fan-out.ts';
import type { Effects, PhaseScope } from './handler-run.ts';
import { type Stopping, sleep, stopped, throwIfStopped } from './stop-reason.ts';
import { waitForEvent } from './wait-for-event.ts';

export interface ContextParts {
  job: JobInfo;
  leaseId: string;
  /** As stored, for a thread that parses them itself. */
  stored: { payload: unknown; checkpoint: unknown };
  payload: unknown;
  /** Its signal is aborted with a StopReason, and is created when it is first read. */
  stopping: Stopping;
  lastCheckpoint: unknown;
  phase?: PhaseScope | undefined;
  /** Results of the phases that are done, by name. */
  results: Readonly<Record<string, unknown>>;
  /** The job leaves its lane while it waits. */
  releasesLane: boolean;
  /** Created with the first durable call of `run`. */
  durable?: DurableCalls | undefined;
  effects(): Effects;
  onPartial(reason: string): void;
}

class Context implements JobContext {
  readonly job: JobInfo;
  readonly payload: unknown;
  readonly lastCheckpoint: unknown;
  readonly #parts: ContextParts;
  #signal: AbortSignal | undefined;
  #log: LogFunction | undefined;
  #lease: Lease | undefined;
  #children = 0;
  /** Enqueued by this run, and not waited for. */
  readonly #notAwaited: string[] = [];
  #childrenWaits = 0;

  constructor(parts: ContextParts) {
    this.#parts = parts;
    this.job = parts.job;
    this.payload = parts.payload;
    this.lastCheckpoint = parts.lastCheckpoint;
  }

  get signal(): AbortSignal {
    this.#signal ??= withErrorReason(this.#parts.stopping.signal);
    return this.#signal;
  }

  get lease(): Lease {
    const { leaseId, job, effects } = this.#parts;
    this.#lease ??= {
      id: leaseId,
      fence: `${job.id}:${job.attempt}:${leaseId}`,
      assert: async () => {
        await effects().assertLease();
      },
    };
    return this.#lease;
  }

  get log(): LogFunction {
    const { effects } = this.#parts;
    this.#log ??= Object.assign(
      (message: string, data?: Record<string, unknown>) => effects().log('info', String(message), data),
      {
        warn: (message: string, data?: Record<string, unknown>) => effects().log('warn', String(message), data),
        error: (message: string, data?: Record<string, unknown>) => effects().log('error', String(message), data),
      },
    );
    return this.#log;
  }

  get progress() {
    return (percent: number, message?: string): void => {
      const value = Number(percent);
      if (Number.isNaN(value)) throw new TypeError('progress needs a number from 0 to 100');
      this.#parts.effects().progress(Math.min(100, Math.max(0, value)), message, this.#parts.phase);
    };
  }

  get phaseResult() {
    return (name: string): unknown => this.#parts.results[name];
  }

  get phaseResults() {
    return (): Record<string, unknown> => ({ ...this.#parts.results });
  }

  get addUsage() {
    return async (usage: Units): Promise<void> => {
      checkUsage(usage);
      await this.#parts.effects().addUsage(usage);
      throwIfStopped(this.#parts.stopping.signal);
    };
  }

  get sleep() {
    return (ms: number): Promise<void> => sleep(ms, this.#parts.stopping);
  }

  get step() {
    return async <T>(name: string, run: (step: StepContext) => T | Promise<T>, options: StepOptions = {}): Promise<T> =>
      this.#durableCalls.step(name, run, options);
  }

  get sleepFor() {
    return async (duration: Duration, { name }: SleepOptions = {}): Promise<void> =>
      this.#durableCalls.sleep({ ms: parseDuration(duration) }, name);
  }

  get sleepUntil() {
    return async (time: Date | string, { name }: SleepOptions = {}): Promise<void> => {
      const at = new Date(time);
      if (Number.isNaN(at.getTime())) throw new RangeError('sleepUntil needs a date, or its text in ISO 8601');
      await this.#durableCalls.sleep({ until: at.toISOString() }, name);
    };
  }

  get ask() {
    // biome-ignore lint/suspicious/noExplicitAny: the types are those of the options, which only the caller knows.
    return async (options: AskOptions): Promise<any> => askPerson(this.#durableCalls, options);
  }

  get waitForEvent(): WaitForEvent {
    const wait = async (name: string, options: EventWaitOptions = {}): Promise<ReceivedEvent | undefined> =>
      waitForEvent(this.#durableCalls, name, options);
    return wait as WaitForEvent;
  }

  get #durableCalls(): DurableCalls {
    this.#parts.durable ??= new DurableCalls(this.#parts);
    return this.#parts.durable;
  }

  get enqueue() {
    return async (type: string, payload: unknown, options: ChildOptions = {}): Promise<EnqueuedChild> => {
      throwIfStopped(this.#parts.stopping.signal);
      const { phase } = this.#parts;
      this.#children += 1;
      const place = options.key === undefined ? String(this.#children) : `key:${options.key}`;
      const child = await this.#parts
        .effects()
        .enqueue(phase === undefined ? place : `${phase.name}:${place}`, type, payload, options);
      if (phase === undefined && options.unique === undefined) this.#notAwaited.push(child.id);
      return child;
    };
  }

  get fanOut() {
    return async <T>(
      name: string,
      items: readonly T[],
      toJob: (item: T, index: number) => ChildJob,
      options: FanOutOptions = {},
      // biome-ignore lint/suspicious/noExplicitAny: the caller names the type of the results.
    ): Promise<any[]> => fanOut(this.#durableCalls, name, items, toJob, options);
  }

  get waitForChildren() {
    // biome-ignore lint/suspicious/noExplicitAny: as above.
    return async (options: ChildrenOptions = {}): Promise<any[]> => {
      this.#childrenWaits += 1;
      const ids = [...new Set(this.#notAwaited.splice(0))];
      return waitForChildren(this.#durableCalls, options.name ?? `children#${this.#childrenWaits}`, ids, options);
    };
  }

  get checkpoint() {
    return (state: unknown): Promise<void> => this.#parts.effects().checkpoint(state);
  }

  get markPartial() {
    return (reason: string): void => this.#parts.onPartial(String(reason));
  }
}

/** The same signal, with an Error as its reason, so that fetch and others reject with a readable error. */
function withErrorReason(signal: AbortSignal): AbortSignal {
  const controller = new AbortController();
  const abort = () => controller.abort(stopped(signal));
  if (signal.aborted) abort();
  else signal.addEventListener('abort', abort, { once: true });
  return controller.signal;
}

/** Runs a definition's code in this thread: the job's `run`, or the phase that the parts name. */
export function invokeHere(definition: JobDefinition, parts: ContextParts): unknown {
  const context = new Context(parts);
  const { phase } = parts;
  if (phase === undefined) return definition.run?.(context);
  return definition.phases?.find((one) => one.name === phase.name)?.run(context);
}

/** Was checked at enqueue; the schema may have changed since, and its output is produced here. */
export function parsePayload(definition: JobDefinition, payload: unknown): unknown {
  if (definition.payload === undefined) return payload;
  const parsed = definition.payload.safeParse(payload);
  if (parsed.success) return parsed.data;
  const issue = parsed.error.issues[0];
  const field = ['payload', ...(issue?.path ?? [])].join('.');
  throw new Fatal(`${field}: ${issue?.message ?? 'is not valid'}`, { code: 'INVALID_PAYLOAD' satisfies JobErrorCode });
}

/** A state that no longer fits its schema is ignored. */
export function parseCheckpoint(definition: JobDefinition, stored: unknown): unknown {
  if (stored === null || stored === undefined) return undefined;
  if (definition.checkpoint === undefined) return stored;
  const parsed = definition.checkpoint.safeParse(stored);
  return parsed.success ? parsed.data : undefined;
}
