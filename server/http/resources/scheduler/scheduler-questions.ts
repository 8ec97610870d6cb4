// /api/scheduler/lease/{lease_id}/ask: a remote worker asks a person.
import { z } from 'zod';
import { checkQuestion } from '../../../jobs/questions/answer-schema.ts';
import type { QuestionState } from '../../../jobs/questions/ask.ts';
import { questionRequest } from '../../../jobs/questions/question-request.ts';
import { isUuid, nameField } from '../../../kernel/fields.ts';
import { askFromWorker } from '../../../scheduler/ask-from-worker.ts';
import { noSuchLease } from '../../../scheduler/worker-lease.ts';
import { RouteGroup } from '../../route.ts';
import type { SchedulerDependencies } from './scheduler-jobs.ts';
import { heartbeatBody, idParams } from './scheduler-schemas.ts';

const askBody = heartbeatBody
  .pick({ job_id: true, worker_id: true })
  .extend({ name: nameField().describe('Identifies the question among those of the job.') })
  .extend(questionRequest.shape);

const answerSchema = z.strictObject({
  status: z
    .enum(['waiting', 'answered', 'failed'])
    .describe('`waiting`: the job waits and the lease has ended. The next worker asks the same and gets the answer.'),
  question_id: z.string().nullable(),
  expires_at: z.iso.datetime({ offset: true }).nullable(),
  answer: z.record(z.string(), z.unknown()).nullable(),
  action: z.string().nullable(),
  error: z.looseObject({ code: z.string(), message: z.string() }).nullable().describe('Nobody answered in time.'),
});

export function schedulerQuestionRoutes({ config, wake }: SchedulerDependencies): RouteGroup {
  const group = new RouteGroup('Scheduler');
  group.route({
    method: 'post',
    path: '/api/scheduler/lease/{lease_id}/ask',
    summary: 'Ask a person; the job waits for the answer without a lease',
    description:
      'The schema must be a plain JSON Schema of type `object`, without patterns and references. May be repeated.',
    access: 'worker',
    params: idParams('lease_id'),
    body: askBody,
    answers: { 200: answerSchema },
    problems: ['NOT_FOUND', 'LEASE_LOST'],
    handle: async ({ params: { lease_id: leaseId }, body, tenant, db }) => {
      if (!isUuid(leaseId)) throw noSuchLease();
      const { job_id: jobId, worker_id: workerId, name, ...asked } = body;
      const checked = checkQuestion(asked, { trusted: false });
      const question = { ...checked, timeout_seconds: asked.timeout_seconds ?? config.questionTimeoutSeconds };
      const state = await askFromWorker(db, tenant.schema, { leaseId, jobId, workerId, name, question });
      wake?.(tenant);
      return stateToApi(state);
    },
  });
  return group;
}

function stateToApi(state: QuestionState): z.input<typeof answerSchema> {
  const nothing = { question_id: null, expires_at: null, answer: null, action: null, error: null };
  switch (state.status) {
    case 'open':
      return { ...nothing, status: 'waiting', question_id: state.questionId, expires_at: state.until };
    case 'completed':
      return { ...nothing, status: 'answered', answer: state.result.answer, action: state.result.action ?? null };
    case 'failed':
      return { ...nothing, status: 'failed', error: state.error };
  }
}
