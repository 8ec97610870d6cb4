// One reason why a job is not running, and the actions that would release it.
import type { Hold } from '../jobs/model/hold.ts';

export const reasonCodes = [
  'FINISHED',
  'HELD',
  'HANDLER_RUNNING',
  'SCHEDULED',
  'BACKOFF',
  'WAITING',
  'AFTER_JOB',
  'CHILD_HELD',
  'CLAIMED',
  'NO_LEASE',
  'TARGET_PAUSED',
  'CANARY',
  'TARGET_HELD',
  'BEHIND_JOB',
  'BEHIND_MORE',
  'TENANT_SUSPENDED',
  'TENANT_AT_LIMIT',
  'NO_DAEMON',
  'DRAINING',
  'NO_HANDLER',
  'DAEMONS_BUSY',
  'NO_WORKER',
  'CAPACITY',
  'LIMITED',
] as const;
type ReasonCode = (typeof reasonCodes)[number];

export interface ReleaseAction {
  action: string;
  method: 'POST' | 'PATCH' | 'PUT';
  path: string;
}

export interface Release {
  detail: string;
  /** The time at which the reason ends without action, if it is known. */
  at: string | null;
  /** Actions for a person. Any one of them releases the job, now or when the job that it starts ends. */
  actions: ReleaseAction[];
}

export interface Reason {
  code: ReasonCode;
  detail: string;
  /** The other job that the reason refers to. */
  jobId?: string;
  since?: string | null;
  /** The author and kind of the hold. */
  hold?: Hold;
  release: Release;
}

export function jobAction(jobId: string, action: string): ReleaseAction {
  return { action, method: 'POST', path: `/api/jobs/${jobId}/${action}` };
}

export function answerAction(questionId: string): ReleaseAction {
  return { action: 'answer', method: 'POST', path: `/api/questions/${questionId}/answer` };
}

export function sendAction(event: string): ReleaseAction {
  return { action: 'send', method: 'POST', path: `/api/events/${encodeURIComponent(event)}` };
}
