// Runs the code of one phase and returns its end.

import { dispositionOf } from '../../durable/handler-errors.ts';
import { isRecoverable, toJobError } from '../../durable/job-error.ts';
import { throwIfStopped } from '../../durable/stop-reason.ts';
import { toStorable } from '../../durable/storable.ts';
import { tryStep } from '../../durable/try-step.ts';
import type { JobError } from '../../jobs/model/job.ts';
import { jobError } from '../../jobs/model/job-errors.ts';
import type { PhaseDefinition } from '../handlers/define-job.ts';
import type { ContextParts } from './context.ts';
import type { HandlerRun } from './handler-run.ts';

export type PhaseEnd =
  | { status: 'completed' | 'partial'; result: unknown; message?: string | undefined }
  | { status: 'skipped'; message: string }
  | { status: 'failed'; error: JobError; recoverable: boolean };

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
  /** The phase runs in a thread, which can be terminated alone. */
  isolated: boolean;
  /** Marks the phase as running again. */
  beginAgain(): Promise<void>;
}

/** Rejects with `JobStopped` if the attempt must stop. */
export async function runPhase({ phase, run, parts, invoke, isolated, beginAgain }: PhaseRun): Promise<PhaseEnd> {
  const { name, retry, timeoutSeconds } = phase;
  let partial: string | undefined;
  let killer: AbortController | undefined;
  const onPartial = (reason: string) => {
    partial = reason;
  };
  const runOnce = (signal: AbortSignal) => {
    partial = undefined;
    const own = new AbortController();
    killer = own;
    const stopping = {
      signal,
      check: () => run.check?.(),
      ...(run.trustedUntilMs && { trustedUntilMs: () => run.trustedUntilMs?.() ?? Number.POSITIVE_INFINITY }),
    };
    return invoke(
      { ...parts, stopping, onPartial },
      {
        get kill() {
          return AbortSignal.any([run.kill, own.signal]);
        },
      },
    );
  };
  try {
    const { value } = await tryStep({
      kind: 'phase',
      name,
      run: runOnce,
      retry,
      timeoutSeconds,
      stopping: run,
      effects: parts.effects(),
      job: run.job,
      graceMs: run.config.cancelGraceSeconds * 1000,
      beginAgain,
      // Code in this process cannot be terminated: it is fenced off with its job. A thread can.
      ...(isolated && { giveUp: (reason) => killer?.abort(reason) }),
      keepsLateResult: true,
    });
    const error = findResultError(phase, value);
    if (error) return { status: 'failed', error, recoverable: false };
    const stored = toStorable(value, run.config.resultLimitBytes, `The result of phase ${name}`);
    if (!stored.ok) return { status: 'failed', error: stored.error, recoverable: false };
    return { status: partial === undefined ? 'completed' : 'partial', result: stored.value, message: partial };
  } catch (error) {
    throwIfStopped(run.signal);
    if (dispositionOf(error) === 'skipPhase') return { status: 'skipped', message: toJobError(error).message };
    return { status: 'failed', error: toJobError(error), recoverable: isRecoverable(error, run.job, retry) };
  }
}

function findResultError(phase: PhaseDefinition, value: unknown): JobError | undefined {
  const issue = phase.result?.safeParse(value).error?.issues[0];
  if (issue === undefined) return undefined;
  const path = ['result', ...issue.path].join('.');
  return jobError('INVALID_RESULT', `Phase ${phase.name} returned what its schema refuses: ${path}: ${issue.message}`);
}
