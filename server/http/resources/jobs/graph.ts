// GET …/graph: the jobs that a job runs after, those that run after it, its children, and the jobs connected with them.
import { z } from 'zod';
import type { Queryable } from '../../../database/database.ts';
import { readGraph } from '../../../jobs/flows/job-graph.ts';
import { statuses } from '../../../jobs/model/states.ts';
import type { Tenant } from '../../../tenants/tenant.ts';
import { RouteGroup } from '../../route.ts';
import { jobParams, targetJobParams } from './job-schema.ts';
import { mustReadJob } from './jobs.ts';

const maxNodes = 1000;

const graphSchema = z
  .strictObject({
    nodes: z.array(
      z.strictObject({
        id: z.uuid(),
        type: z.string().nullable().describe('null: the job was deleted.'),
        status: z.enum(statuses).nullable(),
        target_id: z.string().nullable(),
      }),
    ),
    edges: z.array(
      z.strictObject({
        job_id: z.uuid().describe('The job that waits.'),
        after_id: z.uuid().describe('The job that it waits for.'),
        kind: z.enum(['after', 'child']),
        on_failure: z.enum(['hold', 'cancel', 'continue', 'stop']),
        state: z
          .enum(['gated', 'open', 'canceling', 'succeeded', 'failed', 'canceled'])
          .describe('`open` until the other job has ended; `gated`: a child that has not had its turn.'),
      }),
    ),
    truncated: z.boolean().describe('There are more jobs than `limit`.'),
  })
  .meta({ id: 'JobGraph' });

type GraphBody = z.input<typeof graphSchema>;

const query = z.strictObject({
  limit: z.coerce.number().int().min(1).max(maxNodes).default(200).describe('How many jobs; the nearest are returned.'),
});

export function graphRoutes(): RouteGroup {
  const group = new RouteGroup('Jobs');
  const read = async (
    db: Queryable,
    tenant: Tenant,
    limit: number,
    jobId: string,
    targetId?: string,
  ): Promise<GraphBody> => {
    const job = await mustReadJob(db, tenant, jobId, targetId);
    const { nodes, edges, truncated } = await readGraph(db, tenant.schema, job.id, limit);
    return {
      nodes: nodes.map(({ targetId: target_id, ...node }) => ({ ...node, target_id })),
      edges: edges.map(({ jobId: job_id, afterId: after_id, kind, onFailure: on_failure, state }) => {
        return { job_id, after_id, kind, on_failure, state };
      }) as GraphBody['edges'],
      truncated,
    };
  };
  const definition = {
    method: 'get',
    summary: 'The jobs that a job waits for, those that wait for it, and what is connected with them',
    access: 'read',
    query,
    answers: { 200: graphSchema },
    problems: ['NOT_FOUND'],
  } as const;
  group.route({
    ...definition,
    path: '/api/jobs/{job_id}/graph',
    params: jobParams,
    handle: ({ db, tenant, params, query: { limit } }) => read(db, tenant, limit, params.job_id),
  });
  group.route({
    ...definition,
    path: '/api/targets/{target_id}/jobs/{job_id}/graph',
    params: targetJobParams,
    handle: ({ db, tenant, params, query: { limit } }) => read(db, tenant, limit, params.job_id, params.target_id),
  });
  return group;
}
