// Runs one phase: its tries, its time limit and its end.

import { dispositionOf } from '../../durable/handler-errors.ts';
import { isRecoverable, toJobError } from '../../durable/job-error.ts';
import { sleep } from '../../durable/stop-reason.ts';
import { toStorable } from '../../durable/storable.ts';
import type { JobError } from '../../jobs/model/job.ts';
import { jobError } from '../../jobs/model/job-errors.ts';
import { backoffMs, defaultBackoff } from '../../kernel/backoff.ts';
import { maxTimerMs } from '../../kernel/limits.ts';
import type { PhaseDefinition } from '../handlers/define-job.ts';
import type { ContextParts } from './context.ts';
import type { HandlerRun } from './handler-run.ts';

export type PhaseEnd =
  | { status: 'completed' | 'partial'; result: unknown; message?: string | undefined }
  | { status: 'skipped'; message: string }
  | { status: 'failed'; error: JobError; recoverable: boolean }
  | NotBegun;

/** The attempt was asked to stop (its signal has the reason), or the lease is lost. */
export type NotBegun = { status: 'stopped' } | { status: 'lost' };

/**
 * Runs the definition's code, here or in a thread: the phase in `parts.phase`, otherwise the job's `run`. Reading the
 * kill signal creates it, so it is read only when needed.
 */
export type Invoke = (parts: ContextParts, killer: { readonly kill: AbortSignal }) => unknown;

export interface PhaseRun {
  phase: PhaseDefinition;
  run: HandlerRun;
  parts: ContextParts;
  invoke: Invoke;
  isolated: boolean;
  /** Marks the phase as running again. Resolves with the reason if it may not run. */
  begin(): Promise<NotBegun | undefined>;
}

export async function runPhase(phaseRun: PhaseRun): Promise<PhaseEnd> {
  const { phase, run, begin } = phaseRun;
  const attempts = phase.retry?.attempts ?? 1;
  for (let attempt = 1; ; attempt++) {
    const end = await tryPhase(phaseRun);
    if (end.status !== 'failed' || !end.recoverable || attempt >= attempts) return end;
    const delayMs = backoffMs({ ...defaultBackoff, ...phase.retry }, attempt, Math.random());
    phaseRun.parts.effects().log('warn', `phase ${phase.name} failed and is retried`, {
      attempt,
      delay_ms: delayMs,
      error: end.error,
    });
    try {
      await sleep(delayMs, run);
    } catch {
      return { status: 'stopped' };
    }
    const notBegun = await begin();
    if (notBegun !== undefined) return notBegun;
  }
}

async function tryPhase({ phase, run, parts, invoke, isolated }: PhaseRun): Promise<PhaseEnd> {
  const limit = new TimeLimit(phase, run, isolated);
  let partial: string | undefined;
  try {
    const onPartial = (reason: string) => {
      partial = reason;
    };
    const stopping = {
      signal: limit.signal,
      check: () => run.check?.(),
      ...(run.trustedUntilMs && { trustedUntilMs: () => run.trustedUntilMs?.() ?? Number.POSITIVE_INFINITY }),
    };
    const value = await invoke({ ...parts, stopping, onPartial }, limit);
    const error = findResultError(phase, value);
    if (error) return { status: 'failed', error, recoverable: false };
    const stored = toStorable(value, run.config.resultLimitBytes, `The result of phase ${phase.name}`);
    if (!stored.ok) return { status: 'failed', error: stored.error, recoverable: false };
    return { status: partial === undefined ? 'completed' : 'partial', result: stored.value, message: partial };
  } catch (error) {
    if (run.signal.aborted) return { status: 'stopped' };
    if (limit.isOver) return { status: 'failed', error: limit.error, recoverable: limit.isRecoverable };
    if (dispositionOf(error) === 'skipPhase') return { status: 'skipped', message: toJobError(error).message };
    return { status: 'failed', error: toJobError(error), recoverable: isRecoverable(error, run.job, phase.retry) };
  } finally {
    limit.clear();
  }
}

function findResultError(phase: PhaseDefinition, value: unknown): JobError | undefined {
  const issue = phase.result?.safeParse(value).error?.issues[0];
  if (issue === undefined) return undefined;
  const path = ['result', ...issue.path].join('.');
  return jobError('INVALID_RESULT', `Phase ${phase.name} returned what its schema refuses: ${path}: ${issue.message}`);
}

/** The time limit of a phase: aborts its signal, then gives up on code that does not observe it. */
class TimeLimit {
  readonly signal: AbortSignal;
  readonly kill: AbortSignal;
  isOver = false;
  readonly #phase: PhaseDefinition;
  readonly #run: HandlerRun;
  #timer: NodeJS.Timeout | undefined;

  constructor(phase: PhaseDefinition, run: HandlerRun, isolated: boolean) {
    this.#phase = phase;
    this.#run = run;
    const seconds = phase.timeoutSeconds;
    if (seconds === undefined) {
      this.signal = run.signal;
      this.kill = run.kill;
      return;
    }
    const stop = new AbortController();
    const kill = new AbortController();
    this.signal = AbortSignal.any([run.signal, stop.signal]);
    this.kill = AbortSignal.any([run.kill, kill.signal]);
    const reason = { kind: 'timedOut' as const, afterSeconds: seconds, phase: phase.name };
    const giveUp = () => {
      kill.abort(reason);
      // Code in this process cannot be terminated, so its job is fenced off. A thread has exited by now.
      if (!isolated) run.stop(reason);
    };
    this.#timer = setTimeout(
      () => {
        this.isOver = true;
        stop.abort(reason);
        this.#timer = setTimeout(giveUp, run.config.cancelGraceSeconds * 1000);
      },
      Math.min(seconds * 1000, maxTimerMs),
    );
  }

  get error(): JobError {
    const { name, timeoutSeconds } = this.#phase;
    return jobError('TIMEOUT', `Phase ${name} ran longer than ${timeoutSeconds} s.`);
  }

  get isRecoverable(): boolean {
    const { retry } = this.#phase;
    if (retry?.on === 'any') return true;
    return (
      (Array.isArray(retry?.on) && retry.on.includes('TIMEOUT')) || !!this.#run.job.retry?.codes?.includes('TIMEOUT')
    );
  }

  clear(): void {
    clearTimeout(this.#timer);
  }
}
