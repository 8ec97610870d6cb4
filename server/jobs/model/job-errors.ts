// The catalogue of error codes that the engine stores in `error.code` of a job. Handlers and remote workers add their
// own codes. The table in docs/handlers.md is tested against this file. Problems of the HTTP API are in
// kernel/errors.ts.

import type { JobError } from './job.ts';
import { describeSpent, type Spent } from './job-budget.ts';

/** @internal Exported for its test. */
export const jobErrors = {
  HANDLER_ERROR: 'The handler or the remote worker failed without a code of its own.',
  INVALID_PAYLOAD: 'The payload does not match the schema of the job type.',
  INVALID_RESULT: 'A phase returned a result that its schema refuses.',
  RESULT_NOT_JSON:
    'A result or checkpoint cannot be stored as JSON: functions, bigint, cycles, NaN, `\\u0000`, unpaired surrogates, Map, Set.',
  RESULT_TOO_LARGE: 'A result or checkpoint is larger than `RESULT_LIMIT_BYTES`.',
  RESULT_REFUSED: 'The database refused to store the outcome of the attempt.',
  PARTIAL: 'The handler, or the phase in `error.phases`, completed only in part.',
  PHASES_FAILED: 'At least one phase failed; `error.phases` has the error of each.',
  STEP_NAME_TWICE: 'Two durable calls of one run had the same name.',
  STEP_ORDER_CHANGED:
    'A durable call or a phase is where an earlier run of the job had another, e.g. after a deploy; the message names both.',
  STEP_MISSING: 'The handler completed without a durable call or a completed phase of an earlier run of the job.',
  QUESTION_EXPIRED: 'Nobody answered a question of the job in time, and it has no default answer.',
  ANSWER_REFUSED: 'An answer fits the form, but the schema of the handler refuses it; the next run asks again.',
  INVALID_EVENT: 'The data of an event does not match the schema of the handler that waited for it.',
  INVALID_CHILD: 'The payload of a child job cannot be stored as JSON.',
  CHILD_FAILED:
    'A child that `fanOut` or `waitForChildren` waited for did not succeed; `error.details.children` names it.',
  DEPENDENCY_FAILED: 'A job that this one runs after did not succeed.',
  QUEUE_FULL: 'A child job was refused because the tenant has reached `max_queued`.',
  TIMEOUT: 'The attempt, or a step or phase of it, ran longer than it may.',
  TOKEN_LIMIT: 'The job used more tokens than its limit allows; `error.details` has used and limit.',
  BUDGET_SPENT:
    'The job used more of a unit than a budget allows; `error.details` has unit, used, limit and the name of the budget.',
  HANDLER_CRASHED: 'The thread of the handler crashed or ran out of memory.',
  HANDLER_KILLED: 'The handler did not stop when it had to, and its thread was terminated.',
  LEASE_EXPIRED: 'The worker stopped renewing its lease, so the attempt was lost.',
  EXPIRED: 'The job was not started within `expires_in_seconds`.',
  ORPHANED: 'The job was still PENDING `ORPHAN_AFTER_SECONDS` after its time and could not be queued.',
  PAUSED: 'A person or a drain paused the job.',
  CANCELED: 'A person or its remote worker canceled the job.',
} as const satisfies Record<string, string>;

export type JobErrorCode = keyof typeof jobErrors;

export function jobError(code: JobErrorCode, message: string, details: object = {}): JobError {
  return { code, message, ...details };
}

/** Creates the error of an exceeded budget. The token limit of a job has its own code, which is older than budgets. */
export function budgetError(spent: Spent): JobError {
  const { unit, used, limit, budget, per } = spent;
  const details = { unit, used, limit, per, ...(budget !== undefined && { budget }) };
  if (unit === 'tokens' && per === 'job') {
    return jobError('TOKEN_LIMIT', `Token limit exceeded: used ${used} of ${limit} allowed.`, { details });
  }
  return jobError('BUDGET_SPENT', `Budget exceeded: ${describeSpent(spent)}.`, { details });
}

export function isBudgetError(error: { code?: string } | null | undefined): boolean {
  return hasCode(error, 'TOKEN_LIMIT') || hasCode(error, 'BUDGET_SPENT');
}

/** Returns the details of an error from `budgetError`; undefined for other errors. */
export function spentOf(error: JobError | null): Spent | undefined {
  const details = isBudgetError(error) ? (error?.details as Partial<Spent> | undefined) : undefined;
  return details?.unit === undefined ? undefined : (details as Spent);
}

export function isBudgetErrorSql(error = 'j.error'): string {
  return `${error} ->> 'code' in ('TOKEN_LIMIT', 'BUDGET_SPENT')`;
}

/** With the name of the step or phase whose code did not stop when its time was up. */
export function timeoutError(seconds: number, unstopped?: string): JobError {
  const message =
    unstopped === undefined
      ? `The attempt ran longer than ${seconds} s.`
      : `"${unstopped}" ran longer than ${seconds} s and did not stop.`;
  return jobError('TIMEOUT', message);
}

/** True if the error has this code of the engine. */
export function hasCode(error: { code?: string } | null | undefined, code: JobErrorCode): boolean {
  return error?.code === code;
}

/** Returns SQL such as `j.error ->> 'code' = 'LEASE_EXPIRED'`. */
export function hasCodeSql(code: JobErrorCode, error = 'j.error'): string {
  return `${error} ->> 'code' = '${code}'`;
}
