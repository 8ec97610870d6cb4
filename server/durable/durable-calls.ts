// The durable calls of one run of a handler. Each has a name and a position in the order of calls, and is stored. A
// later run of the same job makes the same calls and gets their stored results. A run that waits for long is suspended:
// it is stopped, its job becomes WAITING, and the next run begins from the top.
import type { StepEnd } from '../jobs/attempt/save-steps.ts';
import type { StepCall, StoredStep, WaitEnd } from '../jobs/attempt/steps.ts';
import type { JobError, PhaseKind } from '../jobs/model/job-values.ts';
import type { Waiting } from '../jobs/model/waiting.ts';
import { timeoutSecondsOf } from './call-options.ts';
import type { StepContext, StepOptions } from './durable-context.ts';
import { dispositionOf, Fatal, Recoverable } from './handler-errors.ts';
import { toJobError } from './job-error.ts';
import type { DurableEffects, StepStore } from './step-store.ts';
import { type Stopping, sleep, stopped, throwIfLeaseLost, throwIfStopped } from './stop-reason.ts';
import { toStorable } from './storable.ts';
import { StoredCalls, stepError, throwIfMissing } from './stored-calls.ts';
import { tryStep } from './try-step.ts';

// Shorter waits stay in the process, because suspending and claiming again costs about as much.
const maxInProcessMs = 2000;
// The column has two bytes.
const maxCalls = 32_767;
const maxNameLength = 200;

/** The parts of a run that durable calls need. */
export interface RunParts {
  phase?: { name: string } | undefined;
  stopping: Stopping;
  /** The job leaves its lane while it waits. */
  releasesLane: boolean;
  effects(): DurableEffects;
}

interface LongWait {
  waiting: Waiting;
  leftMs: number;
  /** Until the job is due: for a reminder, or because the wait is over. */
  wakeMs: number;
}

export class DurableCalls {
  readonly #parts: RunParts;
  readonly #names = new Set<string>();
  readonly #calls: StoredCalls;
  #stored: Promise<ReadonlyMap<string, StoredStep>> | undefined;
  /** Durable calls that have not returned. */
  #open = 0;
  #count = 0;
  /** Steps whose code runs now. */
  runningSteps = 0;
  /** The number of calls of each kind without their own name. */
  readonly #unnamed = new Map<string, number>();
  /** The order of calls is not checked in a run, or after a run, that made several calls at a time. */
  #parallel = false;
  /** Questions of this run without an answer. */
  readonly unanswered = new Set<string>();
  /** Waits that are too long for the process. */
  readonly #waits: LongWait[] = [];
  readonly #rejects: ((error: unknown) => void)[] = [];
  #suspended = false;
  /** The handler has returned. */
  #ended = false;
  /** Steps of this run that failed after the last durable call. */
  readonly #failed: StepEnd[] = [];
  /** Errors of failed steps, with the call of each. */
  readonly #errors = new Map<unknown, StepCall>();

  constructor(parts: RunParts) {
    this.#parts = parts;
    this.#calls = new StoredCalls(() => this.store);
  }

  sleep(end: WaitEnd, name: string | undefined): Promise<void> {
    return this.call('sleep', name ?? this.numbered('sleep'), async (call, stored) => {
      const opened = stored === undefined ? await this.store.openSleep(call, end) : undefined;
      const leftMs = opened?.leftMs ?? stored?.leftMs ?? 0;
      const until = opened?.until ?? stored?.waitsUntil ?? '';
      if (leftMs > 0) await this.wait({ kind: 'sleep', step: call.name, until }, leftMs);
    });
  }

  /** Runs the code once; a later run gets the stored result. `key` distinguishes calls of one name. */
  step<T>(name: string, run: (step: StepContext) => T | Promise<T>, options: StepOptions): Promise<T> {
    return this.call('step', options.key === undefined ? name : `${name}#${options.key}`, async (call, stored) => {
      if (stored?.status === 'completed') return stored.result as T;
      this.throwIfFailed(call, stored);
      const startedAt = performance.now();
      const end = (tries: number) => ({ ...call, tries, ms: performance.now() - startedAt });
      this.runningSteps += 1;
      try {
        const { value, tries } = await tryStep({
          kind: 'step',
          name: call.name,
          run: (signal) => run({ signal }),
          retry: options.retry,
          timeoutSeconds: timeoutSecondsOf('step', options),
          stopping: this.#parts.stopping,
          effects: this.#parts.effects(),
        });
        const copy = toStorable(value, Number.POSITIVE_INFINITY, `The result of step ${call.name}`);
        if (!copy.ok) throw new Fatal(copy.error.message, { code: copy.error.code });
        await this.#calls.save([{ ...end(tries), status: 'completed', result: copy.value }]);
        return copy.value as T;
      } catch (error) {
        throwIfStopped(this.#parts.stopping.signal);
        throw this.failed(call, startedAt, error);
      } finally {
        this.runningSteps -= 1;
      }
    });
  }

  /** If a run failed with the error of a step that is stored as failed, the next run tries the step again. */
  async reopen(error: unknown): Promise<void> {
    this.#ended = true;
    // A run that is stopped does not fail, whatever it throws.
    if (this.#suspended || this.#parts.stopping.signal.aborted) return;
    const call = this.#errors.get(error);
    if (call === undefined || this.#failed.some(({ name }) => name === call.name)) return;
    await this.#calls.save([{ ...call, status: 'pending', tries: 0, ms: 0 }]);
  }

  /** Called after a run has completed. Rejects if an earlier run made a call that this one did not make. */
  async assertComplete(): Promise<void> {
    this.#ended = true;
    if (!this.#parts.stopping.signal.aborted) this.#stored ??= this.#load();
    const stored = (await this.#stored)?.values() ?? [];
    throwIfMissing(stored, ({ name }) => this.#names.has(name), 'this run ended without it');
    if (this.unanswered.size > 0) await this.store.closeQuestions();
  }

  /** The name of a call without one: `sleep#1`. */
  numbered(what: string): string {
    const number = (this.#unnamed.get(what) ?? 0) + 1;
    this.#unnamed.set(what, number);
    return `${what}#${number}`;
  }

  /** Throws the error with which the call ended in an earlier run that caught it. */
  throwIfFailed(call: StepCall, stored: StoredStep | undefined): void {
    if (stored?.status === 'failed' && stored.error !== null) throw this.remember(rebuild(stored.error), call);
  }

  /** Records that the call ended with this error, and returns the error. It is stored if the handler catches it. */
  failed(call: StepCall, startedAt: number, error: unknown): unknown {
    const ms = performance.now() - startedAt;
    const stored = { ...toJobError(error), disposition: dispositionOf(error) };
    this.#failed.push({ ...call, tries: 1, ms, status: 'failed', error: stored });
    return this.remember(error, call);
  }

  /** The handler has caught these failures, so later runs must take the same path. */
  async #storeFailures(): Promise<void> {
    if (this.#failed.length > 0) await this.#calls.save(this.#failed.splice(0));
  }

  stopIfRequested(): Promise<void> {
    return this.#calls.stopIfRequested();
  }

  /** If the run fails with this error, the next one makes the call again. */
  remember(error: unknown, call: StepCall): unknown {
    this.#errors.set(error, call);
    return error;
  }

  get store(): StepStore {
    return this.#parts.effects().steps;
  }

  /**
   * Makes one durable call: named, ordered and found again. Everything up to the first await happens in the order of
   * the calls.
   */
  async call<T>(
    kind: PhaseKind,
    name: string,
    run: (call: StepCall, stored: StoredStep | undefined) => Promise<T>,
  ): Promise<T> {
    if (this.#parts.phase !== undefined)
      throw new TypeError('durable calls are for `run`; a phase is durable as a whole');
    if (name === '' || name.length > maxNameLength) throw new TypeError(`a name has 1 to ${maxNameLength} characters`);
    throwIfStopped(this.#parts.stopping.signal);
    if (this.#names.has(name)) {
      throw stepError('STEP_NAME_TWICE', `"${name}" was called twice in one run; number such calls with a key.`);
    }
    if (this.#count >= maxCalls) throw new RangeError(`a run makes at most ${maxCalls} durable calls`);
    this.#names.add(name);
    const position = this.#count;
    this.#count += 1;
    this.#parallel ||= this.#open > 0;
    const call = { name, position, parallel: this.#open > 0 };
    this.#open += 1;
    try {
      this.#stored ??= this.#load();
      const stored = await this.#stored;
      const own = stored.get(name);
      this.#checkOrder(kind, call, own, stored);
      await this.#storeFailures();
      await this.#calls.stopIfRequested();
      const value = await run(call, own);
      await throwIfLeaseLost(this.#parts.stopping);
      return value;
    } finally {
      this.#open -= 1;
      this.#suspendIfIdle();
    }
  }

  async #load(): Promise<ReadonlyMap<string, StoredStep>> {
    const stored = await this.#calls.load();
    this.#parallel ||= [...stored.values()].some((step) => step.parallel);
    return stored;
  }

  #checkOrder(
    kind: PhaseKind,
    call: StepCall,
    own: StoredStep | undefined,
    stored: ReadonlyMap<string, StoredStep>,
  ): void {
    if (own !== undefined && own.kind !== kind) throw orderChanged(call.position, own, kind, call.name);
    if (this.#parallel || own?.position === call.position) return;
    const there = [...stored.values()].find((step) => step.kind !== 'phase' && step.position === call.position);
    if (there !== undefined) throw orderChanged(call.position, there, kind, call.name);
    if (own !== undefined) throw orderChanged(own.position, own, kind, call.name);
  }

  /** Returns when a short wait is over. A long one suspends the run, and rejects with `JobStopped`. */
  async wait(waiting: Waiting, leftMs: number, wakeMs = leftMs): Promise<void> {
    if (leftMs <= maxInProcessMs) return sleep(leftMs, this.#parts.stopping);
    await this.suspend(waiting, leftMs, wakeMs);
  }

  /** Suspends the run. Called directly for waits that an event may end, which this process would not notice. */
  suspend(waiting: Waiting, leftMs: number, wakeMs = leftMs): Promise<never> {
    const { stopping } = this.#parts;
    this.#waits.push({ waiting, leftMs, wakeMs });
    this.#suspendIfIdle();
    return new Promise<never>((_, reject) => {
      this.#rejects.push(reject);
      const stop = () => reject(stopped(stopping.signal));
      if (stopping.signal.aborted) stop();
      else stopping.signal.addEventListener('abort', stop, { once: true });
    });
  }

  /**
   * Other calls of the same run end first, so that their results are stored. The earliest of several waits wakes the
   * job.
   */
  #suspendIfIdle(): void {
    const isIdle = () => this.#waits.length > 0 && this.#open === this.#waits.length;
    if (!isIdle()) return;
    // Calls that are made in the same turn of the event loop belong together.
    setImmediate(() => {
      const [first] = this.#waits.sort((a, b) => (a.leftMs < b.leftMs ? -1 : 1));
      if (first === undefined || !isIdle() || this.#suspended || this.#ended) return;
      this.#suspended = true;
      const open = this.#waits.filter((wait) => wait.waiting.kind !== 'sleep');
      const shown = open[0] ?? first;
      const waiting: Waiting = { ...shown.waiting, ...(this.#parts.releasesLane && { lane: 'released' }) };
      const wakeMs = Math.min(...this.#waits.map((wait) => wait.wakeMs));
      const awaited = { steps: open.flatMap((wait) => wait.waiting.step ?? []), until: first.waiting.until };
      this.#storeFailures()
        .then(() => this.store.suspend(waiting, wakeMs, open.length > 0 ? awaited : undefined))
        .catch((error: unknown) => {
          for (const reject of this.#rejects) reject(error);
        });
    });
  }
}

/** Returns the error of a stored failure as the step threw it, with its code and whether it is retried. */
export function rebuild({ message, code, disposition, details }: JobError): Error {
  const options = { code, ...(details !== undefined && { details: details as Record<string, unknown> }) };
  if (disposition === 'recoverable') return new Recoverable(message, options);
  return disposition === 'fatal' ? new Fatal(message, options) : Object.assign(new Error(message), options);
}

function orderChanged(position: number, stored: StoredStep, kind: PhaseKind, name: string): Fatal {
  return stepError(
    'STEP_ORDER_CHANGED',
    `Call ${position + 1} of an earlier run was the ${stored.kind} "${stored.name}"; this run called the ${kind} "${name}".`,
  );
}
