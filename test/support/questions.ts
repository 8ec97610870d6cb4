// A question without anything special, and the running job's way to ask it.

import type { Job } from '../../server/jobs/model/job.ts';
import { openQuestion, type QuestionState, type TimedQuestion } from '../../server/jobs/questions/ask.ts';
import type { TenantContext } from './postgres/database.ts';

export const plainQuestion: TimedQuestion = {
  title: 'Go on?',
  schema: { type: 'object', properties: {}, additionalProperties: false },
  actions: [],
  assignees: [],
  reminders: [],
  on_timeout: 'fail',
  timeout_seconds: 3600,
};

export const plainCall = { name: 'ask#1', position: 0, parallel: false };

/** Asks as the attempt that holds the job. */
export function askQuestion(
  { db, schema }: Pick<TenantContext, 'db' | 'schema'>,
  job: Pick<Job, 'id' | 'leaseId'>,
  given: Partial<TimedQuestion> = {},
): Promise<QuestionState | undefined> {
  const held = { jobId: job.id, leaseId: job.leaseId as string };
  return openQuestion(db, schema, held, plainCall, { ...plainQuestion, ...given }, 'worker:w1');
}
