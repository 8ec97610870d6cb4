// /api/scheduler/lease/{lease_id}/…: the durable waits of remote workers, and the end of an attempt that waits. Each request
// may be repeated.
import type { z } from 'zod';
import { openEventWait } from '../../../jobs/attempt/event-waits.ts';
import { openSleep } from '../../../jobs/attempt/steps.ts';
import { checkDocument, noteLimitBytes } from '../../../jobs/enqueue/enqueue-limits.ts';
import { budgetRules } from '../../../jobs/model/job-budget.ts';
import { foreverMs } from '../../../jobs/model/waiting.ts';
import { checkQuestion } from '../../../jobs/questions/answer-schema.ts';
import { invalidFields, isUuid } from '../../../kernel/fields.ts';
import { type AskedFromWorker, askFromWorker } from '../../../scheduler/ask-from-worker.ts';
import { suspendAttempt } from '../../../scheduler/suspend-attempt.ts';
import { writeAsHolder } from '../../../scheduler/worker-calls.ts';
import { type LeaseHolder, noSuchLease } from '../../../scheduler/worker-lease.ts';
import type { Tenant } from '../../../tenants/tenant.ts';
import { type RouteContext, RouteGroup } from '../../route.ts';
import {
  askAnswer,
  askBody,
  eventAnswer,
  eventBody,
  sleepAnswer,
  sleepBody,
  suspendAnswer,
  suspendBody,
} from './call-schemas.ts';
import type { SchedulerDependencies } from './scheduler-jobs.ts';
import { idParams } from './scheduler-schemas.ts';

const base = '/api/scheduler/lease/{lease_id}';
const leaseParams = idParams('lease_id');

type Body = { job_id: string; worker_id: string };
export type LeaseCall<B extends Body> = Pick<
  RouteContext<'worker', { lease_id: string }, unknown, B>,
  'params' | 'body'
>;

export function holderOf({ params: { lease_id: leaseId }, body }: LeaseCall<Body>): LeaseHolder {
  if (!isUuid(leaseId)) throw noSuchLease();
  return { leaseId, jobId: body.job_id, workerId: body.worker_id };
}

export function schedulerWaitRoutes(deps: SchedulerDependencies): RouteGroup {
  const group = new RouteGroup('Scheduler');
  addAsk(group, deps);
  addSleep(group, deps);
  addEvent(group, deps);
  group.route({
    method: 'post',
    path: `${base}/suspend`,
    summary: 'End the attempt until stored waits are over',
    description: 'For waits that were stored with `suspend: false`, several at once for example.',
    access: 'worker',
    params: leaseParams,
    body: suspendBody,
    allowSuspended: true,
    answers: { 200: suspendAnswer },
    problems: ['NOT_FOUND', 'LEASE_LOST'],
    handle: async (context) => {
      const { call, calls, until, release_lane: releaseLane } = context.body;
      const rules = rulesOf(deps, context.tenant);
      const suspension = { ...holderOf(context), call, calls, until, releaseLane, rules };
      const status = await suspendAttempt(context.db, context.tenant.schema, suspension);
      ended(deps, context.tenant);
      return { status };
    },
  });
  return group;
}

function addAsk(group: RouteGroup, deps: SchedulerDependencies): void {
  group.route({
    method: 'post',
    path: `${base}/ask`,
    summary: 'Ask a person; the job waits for the answer without a lease',
    description:
      'The schema must be a plain JSON Schema of type `object`, without patterns and references. May be repeated.',
    access: 'worker',
    params: leaseParams,
    body: askBody,
    answers: { 200: askAnswer },
    problems: ['NOT_FOUND', 'LEASE_LOST'],
    handle: async (context) => {
      const { job_id, worker_id, name, position, parallel, suspend, release_lane, ...asked } = context.body;
      const timeout_seconds = asked.timeout_seconds ?? deps.config.questionTimeoutSeconds;
      const question = { ...checkQuestion(asked, { trusted: false }), timeout_seconds };
      const answer = await askFromWorker(context.db, context.tenant.schema, {
        ...holderOf(context),
        call: { name, position, parallel },
        question,
        suspend,
        releaseLane: release_lane,
        rules: rulesOf(deps, context.tenant),
      });
      if (answer.suspended !== undefined) ended(deps, context.tenant);
      else deps.wake?.(context.tenant);
      return questionToApi(answer);
    },
  });
}

function questionToApi({ state, suspended }: AskedFromWorker): z.input<typeof askAnswer> {
  const nothing = { question_id: null, expires_at: null, left_ms: null, answer: null, action: null, error: null };
  switch (state.status) {
    case 'open': {
      const { questionId, until, leftMs } = state;
      return { ...nothing, status: suspended ?? 'open', question_id: questionId, expires_at: until, left_ms: leftMs };
    }
    case 'completed':
      return { ...nothing, status: 'answered', answer: state.result.answer, action: state.result.action ?? null };
    case 'failed':
      return { ...nothing, status: 'failed', error: state.error };
  }
}

function addSleep(group: RouteGroup, deps: SchedulerDependencies): void {
  group.route({
    method: 'post',
    path: `${base}/sleep`,
    summary: 'Sleep until a time; the job waits without a lease',
    description: 'The first request stores the end; a later one with the same name finds it.',
    access: 'worker',
    params: leaseParams,
    body: sleepBody,
    answers: { 200: sleepAnswer },
    problems: ['NOT_FOUND', 'LEASE_LOST'],
    handle: async (context) => {
      const { name, position, parallel, until, seconds } = context.body;
      if ((until === undefined) === (seconds === undefined)) {
        throw invalidFields([{ field: 'until', message: 'give either until or seconds' }]);
      }
      const end = until === undefined ? { ms: (seconds ?? 0) * 1000 } : { until };
      const { schema } = context.tenant;
      const holder = holderOf(context);
      const open = () => openSleep(context.db, schema, holder, { name, position, parallel }, end);
      const wait = await writeAsHolder(context.db, schema, holder, open);
      const status = wait.leftMs <= 0 ? 'over' : await waitOrSuspend(deps, context, name);
      return { status, until: wait.until, left_ms: wait.leftMs };
    },
  });
}

function addEvent(group: RouteGroup, deps: SchedulerDependencies): void {
  group.route({
    method: 'post',
    path: `${base}/event`,
    summary: 'Wait for an event from outside; the job waits without a lease',
    description:
      'For one that comes, or has come since the job was enqueued and was not returned by another call of the job.',
    access: 'worker',
    params: leaseParams,
    body: eventBody,
    answers: { 200: eventAnswer },
    problems: ['NOT_FOUND', 'LEASE_LOST'],
    handle: async (context): Promise<z.input<typeof eventAnswer>> => {
      const { name, position, parallel, event, match = null, timeout_seconds: seconds } = context.body;
      checkDocument(match, 'match', noteLimitBytes);
      const { schema } = context.tenant;
      const holder = holderOf(context);
      const wanted = { event, match, ms: seconds === undefined ? null : seconds * 1000 };
      const actor = `worker:${holder.workerId}`;
      const call = { name, position, parallel };
      const found = await writeAsHolder(context.db, schema, holder, () =>
        openEventWait(context.db, schema, holder, call, wanted, actor),
      );
      if (found.kind === 'open') {
        const status = await waitOrSuspend(deps, context, name);
        const left_ms = found.leftMs === foreverMs ? null : found.leftMs;
        return { status, until: found.until ?? null, left_ms, event: null };
      }
      deps.wake?.(context.tenant);
      const over = { status: 'over', until: null, left_ms: null } as const;
      if (found.kind === 'timedOut') return { ...over, event: null };
      const { receivedAt, ...received } = found.event;
      return { ...over, event: { ...received, received_at: receivedAt } };
    },
  });
}

type WaitContext = LeaseCall<Body & { suspend: boolean; release_lane: boolean }> &
  Pick<RouteContext<'worker'>, 'tenant' | 'db'>;

/** What a call that has to wait is answered: its attempt has ended, unless the worker ends it later. */
export async function waitOrSuspend(
  deps: SchedulerDependencies,
  context: WaitContext,
  call: string,
): Promise<'open' | 'waiting' | 'stopped'> {
  if (!context.body.suspend) return 'open';
  const rules = rulesOf(deps, context.tenant);
  const suspension = { ...holderOf(context), call, releaseLane: context.body.release_lane, rules };
  const status = await suspendAttempt(context.db, context.tenant.schema, suspension);
  ended(deps, context.tenant);
  return status;
}

function rulesOf({ config }: SchedulerDependencies, tenant: Tenant) {
  return budgetRules(tenant, config.tokenLimit);
}

/** The next job of the lane may be claimable, or capacity is free again. */
function ended({ waiters, wake }: SchedulerDependencies, tenant: Tenant): void {
  waiters.wake(tenant.schema);
  wake?.(tenant);
}
