// Actions on one job: pause (also called interrupt), cancel, resume, resolve, skip. The same under /api/jobs/{job_id}
// and /api/targets/{target_id}/jobs/{job_id}.

import { z } from 'zod';
import type { Database } from '../../../database/database.ts';
import type { ActionRequest, ActionResult } from '../../../jobs/actions/job-action.ts';
import { cancelJob, pauseJob, skipJob } from '../../../jobs/actions/pause-and-cancel.ts';
import { resolveJob, resumeJob } from '../../../jobs/actions/resume.ts';
import { readPhases } from '../../../jobs/attempt/phases.ts';
import type { CommitSignals } from '../../../jobs/commit-signals.ts';
import { checkDocument } from '../../../jobs/enqueue/enqueue-limits.ts';
import type { JobTypes } from '../../../jobs/enqueue/job-types.ts';
import { problem } from '../../../kernel/errors.ts';
import { isUuid, nameField } from '../../../kernel/fields.ts';
import { unitAmounts } from '../../../tenants/named-settings.ts';
import type { Tenant } from '../../../tenants/tenant.ts';
import { RouteGroup, reply } from '../../route.ts';
import { jobParams, jobSchema, jobToApi, targetJobParams } from './job-schema.ts';

interface JobActionDependencies {
  jobTypes: JobTypes;
  signals: CommitSignals;
}

export const auditFields = {
  reason: z.string().max(2000).optional().describe('Recorded in the history of the job.'),
  author: nameField().optional().describe('The person or program that acts, recorded in the history.'),
};

const plainBody = z.strictObject(auditFields);
const resumeBody = plainBody.extend({
  token_limit: z
    .int()
    .min(0)
    .optional()
    .describe('A new token limit, for a job that exceeded its limit; 0 means no limit.'),
  budget: unitAmounts
    .optional()
    .describe('New limits by unit, for a job that spent its budget: `{ "cents": 1000 }`; 0 means no limit.'),
});
const resolveBody = plainBody.extend({ result: z.unknown().optional().describe('The result of the job.') });

type Body = z.output<typeof resumeBody> & z.output<typeof resolveBody>;
type Act = (db: Database, schema: Tenant['schema'], request: ActionRequest & { body: Body }) => Promise<ActionResult>;

interface Action {
  verb: string;
  summary: string;
  body: z.ZodObject;
  act: Act;
  /** A running job gets a stop request, and the response is 202. */
  stopsRunning?: boolean;
}

const actions: readonly Action[] = [
  { verb: 'pause', summary: 'Pause a job; it holds its lane', body: plainBody, act: pauseJob, stopsRunning: true },
  { verb: 'interrupt', summary: 'The same as pause', body: plainBody, act: pauseJob, stopsRunning: true },
  { verb: 'cancel', summary: 'Cancel a job', body: plainBody, act: cancelJob, stopsRunning: true },
  {
    verb: 'resume',
    summary: 'Run a paused or failed job again, first in its lane, with a fresh set of attempts',
    body: resumeBody,
    act: (db, schema, request) =>
      resumeJob(db, schema, { ...request, tokenLimit: request.body.token_limit, budget: request.body.budget }),
  },
  {
    verb: 'resolve',
    summary: 'End a paused or failed job as SUCCESS with a result that a person supplies',
    body: resolveBody,
    act: (db, schema, request) => resolveJob(db, schema, { ...request, result: request.body.result ?? null }),
  },
  {
    verb: 'skip',
    summary: 'Cancel the job that holds its lane, so that the lane continues',
    body: plainBody,
    act: skipJob,
  },
];

export function jobActionRoutes(deps: JobActionDependencies): RouteGroup {
  const group = new RouteGroup('Jobs');
  for (const action of actions) {
    addAction(group, deps, action, `/api/jobs/{job_id}/${action.verb}`, jobParams);
    addAction(group, deps, action, `/api/targets/{target_id}/jobs/{job_id}/${action.verb}`, targetJobParams);
  }
  return group;
}

function addAction(
  group: RouteGroup,
  { jobTypes, signals }: JobActionDependencies,
  action: Action,
  path: `/${string}`,
  params: typeof jobParams | typeof targetJobParams,
): void {
  group.route({
    method: 'post',
    path,
    summary: action.summary,
    description: action.stopsRunning
      ? '200: done. 202: the job is running; its worker gets the stop request with the next heartbeat.'
      : 'Repeating a completed action changes nothing.',
    access: 'control',
    params,
    body: action.body,
    bodyOptional: true,
    answers: action.stopsRunning ? { 200: jobSchema, 202: jobSchema } : { 200: jobSchema },
    problems: ['NOT_FOUND', 'INVALID_TRANSITION', 'CONFLICT'],
    handle: async (context) => {
      const { tenant, db, actor } = context;
      const ids = context.params as { job_id: string; target_id?: string };
      const body = context.body as Body;
      checkDocument(body.result, 'result');
      if (!isUuid(ids.job_id)) throw problem('NOT_FOUND', 'There is no such job.');
      const request = {
        jobId: ids.job_id,
        targetId: ids.target_id,
        actor,
        author: body.author,
        reason: body.reason,
        body,
      };
      const { job, done } = await action.act(db, tenant.schema, request);
      signals.jobsWritten(tenant);
      return reply(done ? 200 : 202, jobToApi(job, await readPhases(db, tenant.schema, job, jobTypes)));
    },
  });
}
