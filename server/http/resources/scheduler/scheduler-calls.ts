// /api/scheduler/lease/{lease_id}/…: stored steps and children of remote workers. Each request may be repeated, and is
// refused once the lease is lost.
import type { z } from 'zod';
import type { Queryable } from '../../../database/database.ts';
import type { Schema } from '../../../database/identifiers.ts';
import { type DurableRun, enqueueChild, waitForChildrenIn } from '../../../durable/database/enqueue-children.ts';
import type { ChildOptions } from '../../../durable/durable-context.ts';
import { loadSteps } from '../../../jobs/attempt/load-steps.ts';
import { countStoredBytes, type StoredStep } from '../../../jobs/attempt/steps.ts';
import { checkDocument, noteLimitBytes } from '../../../jobs/enqueue/enqueue-limits.ts';
import type { ChildEnd } from '../../../jobs/flows/fenced-children.ts';
import type { JobErrorCode } from '../../../jobs/model/job-errors.ts';
import { Problem, problem } from '../../../kernel/errors.ts';
import { getHeldJob } from '../../../scheduler/worker-calls.ts';
import { RouteGroup } from '../../route.ts';
import {
  callsAnswer,
  callsBody,
  childrenAnswer,
  childrenBody,
  enqueueAnswer,
  enqueueBody,
  maxUnpagedBytes,
  stepsAnswer,
  stepsBody,
} from './call-schemas.ts';
import { envelopeBytes, type LeaseCall, leaseCall, waitOrSuspend } from './lease-call.ts';
import type { SchedulerDependencies } from './scheduler-jobs.ts';

export function schedulerCallRoutes(deps: SchedulerDependencies): RouteGroup {
  const group = new RouteGroup('Scheduler');
  addCalls(group);
  addSteps(group, deps);
  addEnqueue(group, deps);
  addChildren(group, deps);
  return group;
}

function addCalls(group: RouteGroup): void {
  leaseCall(group, {
    name: 'calls',
    summary: 'Read the durable calls that earlier runs of the job have stored',
    description:
      'With `after` in parts, by name: begin with an empty string, and go on with `next` until it is null. Without it all at once, which is refused if they are too many bytes.',
    body: callsBody,
    answer: callsAnswer,
    problems: ['PAYLOAD_TOO_LARGE'],
    handle: async ({ body: { after }, db, schema, holder, write }) => {
      if (after === undefined) await refuseTooLarge(db, schema, holder.jobId);
      const { steps, next, stop } = await write(() => loadSteps(db, schema, holder, after));
      return {
        cancel_intent: stop.cancelIntent,
        calls: steps.map(toCall),
        next: next ?? null,
      };
    },
  });
}

/** The message and the attempts are fields of phases, which a remote worker does not have. */
function toCall({ waitsUntil, leftMs, message: _, attempt: __, ...step }: StoredStep) {
  return { ...step, until: waitsUntil, left_ms: leftMs };
}

/** Used by workers that do not read in parts. */
async function refuseTooLarge(db: Queryable, schema: Schema, jobId: string): Promise<void> {
  const bytes = await countStoredBytes(db, schema, jobId);
  if (bytes <= maxUnpagedBytes) return;
  throw problem(
    'PAYLOAD_TOO_LARGE',
    `The stored calls of the job have ${bytes} bytes; at most ${maxUnpagedBytes} are read at once. Read them in parts, with after.`,
  );
}

function addSteps(group: RouteGroup, { config, stepCommits, signals }: SchedulerDependencies): void {
  leaseCall(group, {
    name: 'steps',
    summary: 'Store how durable steps ended',
    body: stepsBody,
    bodyLimitBytes: config.resultLimitBytes + envelopeBytes,
    allowSuspended: true,
    answer: stepsAnswer,
    problems: ['PAYLOAD_TOO_LARGE'],
    handle: async ({ body: { steps }, tenant, schema, holder, actor, write }) => {
      let bytes = 0;
      for (const [n, { result, error }] of steps.entries()) {
        bytes += checkDocument(result, `steps[${n}].result`, config.resultLimitBytes).length;
        checkDocument(error, `steps[${n}].error`, noteLimitBytes);
      }
      const { cancelIntent } = await write(() =>
        stepCommits.save(schema, { held: holder, changes: steps, actor }, bytes),
      );
      signals.jobsWritten(tenant);
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
  leaseCall(group, {
    name: 'enqueue',
    summary: 'Enqueue a child of the job',
    body: enqueueBody,
    answer: enqueueAnswer,
    problems: ['UNKNOWN_JOB_TYPE', 'QUEUE_FULL'],
    handle: async (call) => {
      const { key, job_type: type, payload = {}, ...options } = call.body;
      const run = await runOf(deps, call);
      const request = { key, type, payload, options: toOptions(options), actor: call.actor };
      const child = await withProblems(() => call.write(() => enqueueChild(run, request)));
      return { job_id: child.id, unique: child.unique ?? null };
    },
  });
}

function addChildren(group: RouteGroup, deps: SchedulerDependencies): void {
  leaseCall(group, {
    name: 'children',
    summary: 'Enqueue children and wait for them; the job waits without a lease',
    description: 'Children are enqueued once. When all have ended, or one has failed, the answer says how.',
    body: childrenBody,
    bodyLimitBytes: deps.config.resultLimitBytes + envelopeBytes,
    answer: childrenAnswer,
    problems: ['UNKNOWN_JOB_TYPE', 'QUEUE_FULL', 'PAYLOAD_TOO_LARGE'],
    handle: async (call) => {
      const { name, position, parallel, on_failure: onFailure, concurrency, jobs, job_ids: ids } = call.body;
      const run = await runOf(deps, call);
      const children = jobs?.map(({ job_type: type, payload, key, ...options }) => ({
        ...toOptions(options),
        type,
        payload,
        ...(key !== undefined && { key }),
      }));
      const open = children !== undefined ? { jobs: children } : ids !== undefined ? { ids } : undefined;
      const request = { call: { name, position, parallel }, onFailure, concurrency, open };
      const state = await withProblems(() => call.write(() => waitForChildrenIn(run, request, call.actor)));
      const isOver = state.ends !== undefined || (state.failed !== null && onFailure === 'stop');
      return {
        status: isOver ? ('over' as const) : await waitOrSuspend(deps, call),
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
  { config, jobTypes, queueLimit, signals }: SchedulerDependencies,
  { db, tenant, schema, holder }: LeaseCall<unknown>,
): Promise<DurableRun> {
  return {
    db,
    tenant,
    job: await getHeldJob(db, schema, holder),
    leaseId: holder.leaseId,
    config,
    jobTypes,
    admit: (children) => queueLimit.admit(tenant, children),
    signals,
  };
}

/** Converts the errors that handlers in a daemon would get into problems of the API. */
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
