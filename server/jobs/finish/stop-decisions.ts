// Who decides how an attempt ends that was also asked to stop, as data. The guards of finish-statement.ts, the outcomes
// of lost leases and of remote workers, and the order of stop reasons in a worker all follow these two tables.

import { type CancelDetail, type Job, type StopIntent, stoppedByUser } from '../model/job.ts';
import { type BudgetRules, findSpent } from '../model/job-budget.ts';
import { budgetError } from '../model/job-errors.ts';
import type { FinishedAttempt, Outcome, OutcomeKind } from './outcome.ts';

/**
 * How an attempt ended, if nobody had asked it to stop:
 * - an outcome that its worker or the sweeper decided without knowing of a request;
 * - `drained`: `stopPaused` because the daemon shuts down;
 * - `leaseLost`: its holder is gone, and it would be retried or fail;
 * - `reported`: a remote worker reports a failure or a cancellation, which the request may have caused.
 */
type AttemptEnd = WrittenEnd | 'leaseLost' | 'reported';
/** Those that finish-statement.ts writes, each with a statement of its own. */
export type WrittenEnd = OutcomeKind | 'drained';

type Decision = Readonly<Record<StopIntent, 'end' | 'request'>>;

const endDecides: Decision = { pause: 'end', cancel: 'end' };
const cancelDecides: Decision = { pause: 'end', cancel: 'request' };
const requestDecides: Decision = { pause: 'request', cancel: 'request' };

/** For each end and each request that is on the row of the job: which of the two decides. */
const stopDecisions: Readonly<Record<AttemptEnd, Decision>> = {
  // The work is done.
  complete: endDecides,
  completePartly: endDecides,
  stopCanceled: endDecides,
  // The job waits for a person, which is what a pause asks for. A cancel would release its lane.
  fail: cancelDecides,
  stopPaused: cancelDecides,
  // A drained job may resume by itself; one that a person paused must not.
  drained: requestDecides,
  // The job would start again.
  retry: requestDecides,
  requeue: requestDecides,
  recover: requestDecides,
  recoverLater: requestDecides,
  suspend: requestDecides,
  suspendAside: requestDecides,
  leaseLost: requestDecides,
  reported: requestDecides,
};

/** Reasons for which a worker stops a handler: `StopReason` of durable/stop-reason.ts. */
type StopKind = 'paused' | 'canceled' | 'leaseLost' | 'drained' | 'timedOut' | 'budgetSpent' | 'suspended';

/**
 * The later reasons that replace an earlier one. The first reason decides over the end of the handler, because it may
 * have caused that end. A lost lease replaces every reason: nothing may be written.
 */
export const replacedBy: Readonly<Record<StopKind, readonly StopKind[]>> = {
  suspended: ['paused', 'canceled', 'budgetSpent', 'leaseLost'],
  drained: ['paused', 'canceled', 'budgetSpent', 'leaseLost'],
  timedOut: ['budgetSpent', 'leaseLost'],
  paused: ['canceled', 'budgetSpent', 'leaseLost'],
  // The later amount is the one that was used.
  budgetSpent: ['budgetSpent', 'leaseLost'],
  canceled: ['leaseLost'],
  leaseLost: [],
};

export function endOf(outcome: Outcome): WrittenEnd {
  return outcome.kind === 'stopPaused' && outcome.by?.kind === 'drain' ? 'drained' : outcome.kind;
}

export function groupByEnd(items: FinishedAttempt[]): Map<WrittenEnd, FinishedAttempt[]> {
  const groups = new Map<WrittenEnd, FinishedAttempt[]>();
  for (const item of items) {
    const end = endOf(item.outcome);
    const group = groups.get(end);
    if (group) group.push(item);
    else groups.set(end, [item]);
  }
  return groups;
}

/** The transition of an end. */
export function kindOf(end: WrittenEnd): OutcomeKind {
  return end === 'drained' ? 'stopPaused' : end;
}

/** A request may supersede this end. */
export function isSupersedable(end: AttemptEnd): boolean {
  return supersedingIntents(end).length > 0;
}

/** Predicate over the job `j`: it has no request that supersedes this end. Undefined if none can. */
export function notSuperseded(end: AttemptEnd): string | undefined {
  const [intent, ...others] = supersedingIntents(end);
  if (intent === undefined) return undefined;
  return others.length > 0 ? 'j.cancel_intent is null' : `j.cancel_intent is distinct from '${intent}'`;
}

function supersedingIntents(end: AttemptEnd): StopIntent[] {
  return (['pause', 'cancel'] as const).filter((intent) => stopDecisions[end][intent] === 'request');
}

type RequestedJob = Pick<Job, 'cancelIntent' | 'cancelDetail'>;

/** The outcome of the request on the job's row; undefined if there is none, or the end decides. */
export function requestedOutcome(end: AttemptEnd, { cancelIntent, cancelDetail }: RequestedJob): Outcome | undefined {
  if (cancelIntent === null || stopDecisions[end][cancelIntent] === 'end') return undefined;
  return stoppedOutcome(cancelIntent, cancelDetail ?? undefined);
}

/** As `requestedOutcome`. A spent budget supersedes every end, and counts as a failure against the request. */
export function supersedingOutcome(end: AttemptEnd, job: Job, rules: BudgetRules): Outcome | undefined {
  const spent = findSpent(job, { ...job.usage, tokens: job.tokensUsed }, rules);
  if (spent === undefined) return requestedOutcome(end, job);
  return requestedOutcome('fail', job) ?? { kind: 'fail', error: budgetError(spent) };
}

export function stoppedOutcome(intent: StopIntent, by: CancelDetail | undefined): Outcome {
  return { kind: intent === 'pause' ? 'stopPaused' : 'stopCanceled', message: stoppedByUser[intent], by };
}
