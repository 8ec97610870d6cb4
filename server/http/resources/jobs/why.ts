// GET …/why: why a job is not running, and what would release it.
import { z } from 'zod';
import { readLiveDaemons } from '../../../daemon-registry/live-daemons.ts';
import type { Database, Queryable } from '../../../database/database.ts';
import { explainJob } from '../../../explain/explain-job.ts';
import { type Reason, reasonCodes } from '../../../explain/reason.ts';
import { statuses } from '../../../jobs/model/states.ts';
import type { Config } from '../../../kernel/config.ts';
import { readCapacities } from '../../../scheduler/capacity.ts';
import type { Tenant } from '../../../tenants/tenant.ts';
import { RouteGroup } from '../../route.ts';
import { toApi } from '../../to-api.ts';
import { jobHoldSchema, jobParams, targetJobParams } from './job-schema.ts';
import { mustReadJob } from './jobs.ts';

interface WhyDependencies {
  config: Pick<Config, 'workerConcurrency' | 'tenantConcurrency' | 'questionTimeoutSeconds'>;
}

const time = z.iso.datetime({ offset: true });

const reasonSchema = z.strictObject({
  code: z.enum(reasonCodes),
  detail: z.string(),
  job_id: z.uuid().optional().describe('The other job that the reason is about.'),
  since: time.nullable().optional(),
  hold: jobHoldSchema.optional().describe('What holds the job or its lane.'),
  release: z.strictObject({
    detail: z.string(),
    at: time.nullable().describe('When it ends without an action, if known.'),
    actions: z
      .array(z.strictObject({ action: z.string(), method: z.enum(['POST', 'PATCH', 'PUT']), path: z.string() }))
      .describe('What a person can do; one of them is enough.'),
  }),
});

const whySchema = z
  .strictObject({
    job_id: z.uuid(),
    status: z.enum(statuses),
    running: z.boolean(),
    claimable: z.boolean().describe('The job can be claimed now.'),
    position: z.int().nullable().describe('Position in the lane: 1 is the head. Not counted beyond 1,002.'),
    reasons: z.array(reasonSchema),
  })
  .meta({ id: 'Why' });
type WhyBody = z.input<typeof whySchema>;

export function whyRoutes({ config }: WhyDependencies): RouteGroup {
  const group = new RouteGroup('Jobs');
  const explain = async (tx: Queryable, tenant: Tenant, jobId: string, targetId?: string): Promise<WhyBody> => {
    const job = await mustReadJob(tx, tenant, jobId, targetId);
    const why = await explainJob(tx, job, {
      tenant,
      daemons: await readLiveDaemons(tx),
      workerConcurrency: config.workerConcurrency,
      tenantConcurrency: config.tenantConcurrency,
      questionTimeoutSeconds: config.questionTimeoutSeconds,
      capacities: await readCapacities(tx, tenant.schema, ['', job.queue]),
    });
    return {
      job_id: job.id,
      status: job.status,
      running: why.running,
      claimable: why.claimable,
      position: why.position,
      reasons: why.reasons.map(reasonToApi),
    };
  };
  const definition = {
    method: 'get',
    summary: 'Why a job is not running, and what would release it',
    description: 'No reasons: the job runs, or can be claimed now.',
    access: 'read',
    answers: { 200: whySchema },
    problems: ['NOT_FOUND'],
  } as const;
  group.route({
    ...definition,
    path: '/api/jobs/{job_id}/why',
    params: jobParams,
    handle: ({ tenant, db, params }) => inOneSnapshot(db, (tx) => explain(tx, tenant, params.job_id)),
  });
  group.route({
    ...definition,
    path: '/api/targets/{target_id}/jobs/{job_id}/why',
    params: targetJobParams,
    handle: ({ tenant, db, params }) => inOneSnapshot(db, (tx) => explain(tx, tenant, params.job_id, params.target_id)),
  });
  return group;
}

/**
 * Reads the lane, its target and the leases in one snapshot, because reasons from several could contradict each other.
 */
function inOneSnapshot<T>(db: Database, read: (tx: Queryable) => Promise<T>): Promise<T> {
  return db.transaction(async (tx) => {
    await tx.query('set transaction isolation level repeatable read, read only');
    return read(tx);
  });
}

function reasonToApi(reason: Reason): WhyBody['reasons'][number] {
  return toApi(reasonSchema, reason);
}
