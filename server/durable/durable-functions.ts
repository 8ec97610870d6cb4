// The functions of a handler's context that make durable calls. They are created on first use, and may be destructured.
import { checkUsage, type Units } from '../jobs/model/job-budget.ts';
import { type Duration, parseDuration } from '../kernel/clock.ts';
import type { AskOptions } from './ask-options.ts';
import { askPerson } from './asking.ts';
import { refuseUnknownOptions, timeoutSecondsOf } from './call-options.ts';
import { DurableCalls, type RunParts } from './durable-calls.ts';
import type {
  ChildJob,
  ChildOptions,
  ChildrenOptions,
  DurableContext,
  EnqueuedChild,
  EventWaitOptions,
  FanOutOptions,
  ReceivedEvent,
  RetryOptions,
  SleepOptions,
  StepContext,
  StepOptions,
  WaitForEvent,
} from './durable-context.ts';
import { fanOut, waitForChildren } from './fan-out.ts';
import { throwIfLeaseLost, throwIfMustStop, throwIfStopped } from './stop-reason.ts';
import { waitForEvent } from './wait-for-event.ts';

export interface DurableParts extends RunParts {
  /** Created with the first durable call. */
  durable?: DurableCalls | undefined;
}

/**
 * Called after a run has completed. Rejects if an earlier run made a durable call that this one did not make. A first
 * run has nothing to compare with, and reads nothing.
 */
export function assertComplete(parts: DurableParts, isFirstRun: boolean): Promise<void> | undefined {
  if (parts.durable === undefined && isFirstRun) return undefined;
  parts.durable ??= new DurableCalls(parts);
  return parts.durable.assertComplete();
}

export class DurableFunctions implements DurableContext {
  readonly #parts: DurableParts;
  #children = 0;
  /** Children that this run enqueued and has not waited for. */
  readonly #notAwaited: string[] = [];
  #childrenWaits = 0;

  constructor(parts: DurableParts) {
    this.#parts = parts;
  }

  get addUsage() {
    return async (usage: Units): Promise<void> => {
      checkUsage(usage);
      await this.#parts.effects().addUsage(usage);
      // What a step has paid for is stored before the run stops: the next one does not pay for it again.
      const isInStep = (this.#parts.durable?.runningSteps ?? 0) > 0;
      const check = isInStep ? throwIfLeaseLost : throwIfMustStop;
      await check(this.#parts.stopping);
    };
  }

  get step() {
    return async <T>(
      name: string,
      run: (step: StepContext) => T | Promise<T>,
      options: StepOptions = {},
    ): Promise<T> => {
      checkStepOptions(options);
      return this.#durableCalls.step(name, run, options);
    };
  }

  get sleepFor() {
    return async (duration: Duration, options: SleepOptions = {}): Promise<void> => {
      refuseUnknownOptions('sleepFor', options, ['name']);
      await this.#durableCalls.sleep({ ms: parseDuration(duration, 'the time of sleepFor') }, options.name);
    };
  }

  get sleepUntil() {
    return async (time: Date | string, options: SleepOptions = {}): Promise<void> => {
      refuseUnknownOptions('sleepUntil', options, ['name']);
      const at = new Date(time);
      if (Number.isNaN(at.getTime()))
        throw new RangeError('the time of sleepUntil must be a date, or its text in ISO 8601');
      await this.#durableCalls.sleep({ until: at.toISOString() }, options.name);
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
      refuseUnknownOptions('enqueue', options, childOptions);
      throwIfStopped(this.#parts.stopping.signal);
      await this.#parts.durable?.stopIfRequested();
      const { phase } = this.#parts;
      this.#children += 1;
      const place = options.key === undefined ? String(this.#children) : `key:${options.key}`;
      const child = await this.#parts
        .effects()
        .enqueue(phase === undefined ? place : `${phase.name}:${place}`, type, payload, options);
      await throwIfLeaseLost(this.#parts.stopping);
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
      refuseUnknownOptions('waitForChildren', options, ['onFailure', 'name']);
      this.#childrenWaits += 1;
      const ids = [...new Set(this.#notAwaited.splice(0))];
      return waitForChildren(this.#durableCalls, options.name ?? `children#${this.#childrenWaits}`, ids, options);
    };
  }
}

const stepOptions: readonly (keyof StepOptions)[] = ['retry', 'timeout', 'timeoutSeconds', 'key'];
const retryOptions: readonly (keyof RetryOptions)[] = [
  'attempts',
  'on',
  'kind',
  'delaySeconds',
  'maxDelaySeconds',
  'jitter',
];

/** Throws for options that the step would ignore or misread. */
function checkStepOptions(options: StepOptions): void {
  refuseUnknownOptions('step', options, stepOptions);
  const seconds = timeoutSecondsOf('step', options);
  if (seconds !== undefined && !(seconds > 0)) throw new RangeError('the time limit of a step must be above 0');
  const { retry } = options;
  if (retry === undefined) return;
  refuseUnknownOptions('retry of a step', retry, retryOptions);
  const { attempts } = retry;
  if (attempts !== undefined && !(Number.isInteger(attempts) && attempts > 0)) {
    throw new RangeError('retry.attempts of a step must be a whole number above 0');
  }
}

const childOptions: readonly (keyof ChildOptions)[] = [
  'queue',
  'targetId',
  'priority',
  'runAt',
  'maxAttempts',
  'key',
  'unique',
  'after',
];
