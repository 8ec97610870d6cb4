// /api/scheduler/lease/{lease_id}/…: stored steps and children of remote workers. Each request may be repeated, and is
// refused once the lease is lost.
import type { z } from 'zod';
import { type DurableRun, enqueueChild, waitForChildrenIn } from '../../../durable/database/enqueue-children.ts';
import type { ChildOptions } from '../../../durable/durable-context.ts';
import { loadSteps, saveSteps } from '../../../jobs/attempt/steps.ts';
import type { Enqueued } from '../../../jobs/enqueue/enqueue.ts';
import { checkDocument, noteLimitBytes } from '../../../jobs/enqueue/enqueue-limits.ts';
import type { ChildEnd } from '../../../jobs/flows/fenced-children.ts';
import type { JobErrorCode } from '../../../jobs/model/job-errors.ts';
import { Problem, problem } from '../../../kernel/errors.ts';
import { getHeldJob, writeAsHolder } from '../../../scheduler/worker-calls.ts';
import type { LeaseHolder } from '../../../scheduler/worker-lease.ts';
import { type RouteContext, RouteGroup } from '../../route.ts';
import {
  callsAnswer,
  callsBody,
  childrenAnswer,
  childrenBody,
  enqueueAnswer,
  enqueueBody,
  stepsAnswer,
  stepsBody,
} from './call-schemas.ts';
import type { SchedulerDependencies } from './scheduler-jobs.ts';
import { idParams } from './scheduler-schemas.ts';
import { holderOf, waitOrSuspend } from './scheduler-waits.ts';

const base = '/api/scheduler/lease/{lease_id}';
const leaseParams = idParams('lease_id');
// The body of a request: its results or payloads and the fields around them.
const envelopeBytes = 65_536;

export function schedulerCallRoutes(deps: SchedulerDependencies): RouteGroup {
  const group = new RouteGroup('Scheduler');
  addSteps(group, deps);
  addEnqueue(group, deps);
  addChildren(group, deps);
  return group;
}

function addSteps(group: RouteGroup, { config, wake }: SchedulerDependencies): void {
  group.route({
    method: 'post',
    path: `${base}/calls`,
    summary: 'Read the durable calls that earlier runs of the job have stored',
    access: 'worker',
    params: leaseParams,
    body: callsBody,
    answers: { 200: callsAnswer },
    problems: ['NOT_FOUND', 'LEASE_LOST'],
    handle: async (context): Promise<z.input<typeof callsAnswer>> => {
      const { db, tenant } = context;
      const holder = holderOf(context);
      const loaded = await writeAsHolder(db, tenant.schema, holder, () => loadSteps(db, tenant.schema, holder));
      const { steps, stop } = loaded;
      return {
        cancel_intent: stop.cancelIntent,
        calls: steps.map(({ waitsUntil, leftMs, ...step }) => ({ ...step, until: waitsUntil, left_ms: leftMs })),
      };
    },
  });
  group.route({
    method: 'post',
    path: `${base}/steps`,
    summary: 'Store how durable steps ended',
    access: 'worker',
    params: leaseParams,
    body: stepsBody,
    bodyLimitBytes: config.resultLimitBytes + envelopeBytes,
    allowSuspended: true,
    answers: { 200: stepsAnswer },
    problems: ['NOT_FOUND', 'LEASE_LOST', 'PAYLOAD_TOO_LARGE'],
    handle: async (context) => {
      const { steps } = context.body;
      for (const [n, { result, error }] of steps.entries()) {
        checkDocument(result, `steps[${n}].result`, config.resultLimitBytes);
        checkDocument(error, `steps[${n}].error`, noteLimitBytes);
      }
      const holder = holderOf(context);
      const { schema } = context.tenant;
      const actor = `worker:${holder.workerId}`;
      const save = () => saveSteps(context.db, schema, holder, steps, actor);
      const { cancelIntent } = await writeAsHolder(context.db, schema, holder, save);
      wake?.(context.tenant);
      return { stored: steps.length, cancel_intent: cancelIntent };
    },
  });
}

type Child = Pick<
  z.output<typeof enqueueBody>,
  'addon_id' | 'target_id' | 'priority' | 'run_at' | 'max_attempts' | 'unique' | 'after'
>;

function toOptions({ addon_id, target_id, priority, run_at, max_attempts, unique, after }: Child): ChildOptions {
  return {
    ...(addon_id !== undefined && { queue: addon_id }),
    ...(target_id !== undefined && { targetId: target_id }),
    ...(priority !== undefined && { priority }),
    ...(run_at !== undefined && { runAt: run_at }),
    ...(max_attempts !== undefined && { maxAttempts: max_attempts }),
    ...(unique !== undefined && { unique }),
    ...(after !== undefined && { after: after.map(toEdge) }),
  };
}

function toEdge(edge: NonNullable<Child['after']>[number]): NonNullable<ChildOptions['after']>[number] {
  if (typeof edge === 'string') return edge;
  return { job: edge.job, ...(edge.on_failure !== undefined && { onFailure: edge.on_failure }) };
}

function addEnqueue(group: RouteGroup, deps: SchedulerDependencies): void {
  group.route({
    method: 'post',
    path: `${base}/enqueue`,
    summary: 'Enqueue a child of the job',
    access: 'worker',
    params: leaseParams,
    body: enqueueBody,
    answers: { 200: enqueueAnswer },
    problems: ['NOT_FOUND', 'LEASE_LOST', 'UNKNOWN_JOB_TYPE', 'QUEUE_FULL'],
    handle: async (context): Promise<z.input<typeof enqueueAnswer>> => {
      const { key, job_type: type, payload = {}, ...options } = context.body;
      const holder = holderOf(context);
      const run = await runOf(deps, context, holder);
      const request = { key, type, payload, options: toOptions(options), actor: `worker:${holder.workerId}` };
      const child = await withProblems(() =>
        writeAsHolder(context.db, context.tenant.schema, holder, () => enqueueChild(run, request)),
      );
      return { job_id: child.id, unique: child.unique ?? null };
    },
  });
}

function addChildren(group: RouteGroup, deps: SchedulerDependencies): void {
  group.route({
    method: 'post',
    path: `${base}/children`,
    summary: 'Enqueue children and wait for them; the job waits without a lease',
    description: 'Children are enqueued once. When all have ended, or one has failed, the answer says how.',
    access: 'worker',
    params: leaseParams,
    body: childrenBody,
    bodyLimitBytes: deps.config.resultLimitBytes + envelopeBytes,
    answers: { 200: childrenAnswer },
    problems: ['NOT_FOUND', 'LEASE_LOST', 'UNKNOWN_JOB_TYPE', 'QUEUE_FULL', 'PAYLOAD_TOO_LARGE'],
    handle: async (context): Promise<z.input<typeof childrenAnswer>> => {
      const { name, position, parallel, on_failure: onFailure, concurrency, jobs, job_ids: ids } = context.body;
      const holder = holderOf(context);
      const run = await runOf(deps, context, holder);
      const children = jobs?.map(({ job_type: type, payload, key, ...options }) => ({
        ...toOptions(options),
        type,
        payload,
        ...(key !== undefined && { key }),
      }));
      const open = children !== undefined ? { jobs: children } : ids !== undefined ? { ids } : undefined;
      const request = { call: { name, position, parallel }, onFailure, concurrency, open };
      const state = await withProblems(() =>
        writeAsHolder(context.db, context.tenant.schema, holder, () =>
          waitForChildrenIn(run, request, `worker:${holder.workerId}`),
        ),
      );
      const isOver = state.ends !== undefined || (state.failed !== null && onFailure === 'stop');
      return {
        status: isOver ? 'over' : await waitOrSuspend(deps, context, name),
        total: state.total,
        unfinished: state.unfinished,
        failed: state.failed && endToApi(state.failed),
        children: state.ends?.map((end) => ({ ...endToApi(end), result: end.result })) ?? null,
      };
    },
  });
}

function endToApi({ id, type, status, error }: Omit<ChildEnd, 'result'>) {
  return { job_id: id, job_type: type, status, error };
}

async function runOf(
  { config, jobTypes, queueLimit, wake, onDependencies }: SchedulerDependencies,
  { db, tenant }: Pick<RouteContext<'worker'>, 'db' | 'tenant'>,
  holder: LeaseHolder,
): Promise<DurableRun> {
  return {
    db,
    tenant,
    job: await getHeldJob(db, tenant.schema, holder),
    leaseId: holder.leaseId,
    config,
    jobTypes,
    admit: (children) => queueLimit.admit(tenant, children),
    onEnqueued: (enqueued: readonly Enqueued[]) => wake?.(tenant, [...enqueued]),
    onDependencies: () => onDependencies?.(tenant),
  };
}

/** Handlers in a daemon get these as errors of theirs. */
async function withProblems<T>(work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    if (error instanceof Problem || !(error instanceof Error) || !('code' in error)) throw error;
    const { message } = error;
    switch (error.code as JobErrorCode) {
      case 'QUEUE_FULL':
        throw problem('QUEUE_FULL', message);
      case 'INVALID_CHILD':
        throw problem('INVALID_FIELD', message, { field: 'payload' });
      case 'RESULT_TOO_LARGE':
        throw problem('PAYLOAD_TOO_LARGE', message, { code_of_job: error.code });
      default:
        throw error;
    }
  }
}
