// Decides the outcome of an attempt from the end of its handler and the reason for which it was asked to stop. A pure
// function.

import type { StopReason } from '../../durable/stop-reason.ts';
import type { Outcome } from '../../jobs/finish/outcome.ts';
import { stoppedOutcome } from '../../jobs/finish/stop-decisions.ts';
import { attemptsLeft, type CancelDetail, type Job, type JobError } from '../../jobs/model/job.ts';
import { budgetError, timeoutError } from '../../jobs/model/job-errors.ts';
import { backoffMs, defaultBackoff } from '../../kernel/backoff.ts';
import { assertNever } from '../../kernel/errors.ts';
import type { HandlerEnd } from './run-handler.ts';

/**
 * Returns undefined if the lease is lost and nothing may be written. The end of the handler counts if it came before
 * the stop request. Otherwise the reason of the stop decides.
 */
export function decideOutcome(
  job: Job,
  end: HandlerEnd | undefined,
  reason: StopReason | undefined,
  random: number,
): Outcome | undefined {
  if (reason !== undefined) return outcomeOfStop(job, reason, random);
  if (end === undefined) return undefined;
  switch (end.kind) {
    case 'completed':
      return { kind: 'complete', result: end.resultText ?? end.result };
    case 'partial':
      return {
        kind: 'completePartly',
        result: end.resultText ?? end.result,
        ...(end.error !== undefined && { error: end.error }),
      };
    case 'failed':
      return outcomeOfFailure(job, end.error, end.recoverable, random);
    default:
      return assertNever(end);
  }
}

function outcomeOfStop(job: Job, reason: StopReason, random: number): Outcome | undefined {
  switch (reason.kind) {
    case 'leaseLost':
      return undefined;
    case 'budgetSpent':
      return { kind: 'fail', error: budgetError(reason) };
    case 'timedOut': {
      const error = timeoutError(reason.afterSeconds, reason.phase);
      return outcomeOfFailure(job, error, false, random);
    }
    case 'paused':
      return stoppedOutcome('pause', reason.by);
    case 'canceled':
      return stoppedOutcome('cancel', reason.by);
    case 'suspended': {
      const { waiting, leftMs, awaited } = reason;
      return { kind: waiting.lane === 'released' ? 'suspendAside' : 'suspend', waiting, leftMs, awaited };
    }
    case 'drained':
      return reason.onDrain === 'requeue'
        ? { kind: 'requeue', reason: 'drained' }
        : stoppedOutcome('pause', drainedBy(job.leaseOwner));
    default:
      return assertNever(reason);
  }
}

function drainedBy(owner: string | null): CancelDetail {
  return { kind: 'drain', reason: 'drained', ...(owner !== null && { author: `worker:${owner}` }) };
}

/** An error is fatal unless the handler says otherwise, or the job lists its code as recoverable. */
function outcomeOfFailure(job: Job, error: JobError, recoverable: boolean, random: number): Outcome {
  const isRetried = recoverable || (job.retry?.codes?.includes(error.code) ?? false);
  if (!isRetried || !attemptsLeft(job)) return { kind: 'fail', error };
  const delayMs = backoffMs(job.retry ?? defaultBackoff, job.attempt - job.attemptFloor, random);
  return { kind: 'retry', error, delayMs };
}
