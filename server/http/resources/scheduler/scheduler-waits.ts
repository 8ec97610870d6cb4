// /api/scheduler/lease/{lease_id}/…: the durable waits of remote workers, and the end of an attempt that waits. Each
// request may be repeated.
import type { z } from 'zod';
import { openEventWait } from '../../../jobs/attempt/event-waits.ts';
import { openSleep } from '../../../jobs/attempt/steps.ts';
import { checkDocument, noteLimitBytes } from '../../../jobs/enqueue/enqueue-limits.ts';
import { foreverMs } from '../../../jobs/model/waiting.ts';
import { checkQuestion } from '../../../jobs/questions/answer-schema.ts';
import { invalidFields } from '../../../kernel/fields.ts';
import { type AskedFromWorker, askFromWorker } from '../../../scheduler/worker-calls.ts';
import { RouteGroup } from '../../route.ts';
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
import { attemptEnded, leaseCall, rulesOf, suspend, waitOrSuspend } from './lease-call.ts';
import type { SchedulerDependencies } from './scheduler-jobs.ts';

export function schedulerWaitRoutes(deps: SchedulerDependencies): RouteGroup {
  const group = new RouteGroup('Scheduler');
  addAsk(group, deps);
  addSleep(group, deps);
  addEvent(group, deps);
  leaseCall(group, {
    name: 'suspend',
    summary: 'End the attempt until stored waits are over',
    description: 'For waits that were stored with `suspend: false`, several at once for example.',
    body: suspendBody,
    allowSuspended: true,
    answer: suspendAnswer,
    handle: async (call) => ({ status: await suspend(deps, call, call.body) }),
  });
  return group;
}

function addAsk(group: RouteGroup, deps: SchedulerDependencies): void {
  leaseCall(group, {
    name: 'ask',
    summary: 'Ask a person; the job waits for the answer without a lease',
    description:
      'The schema must be a plain JSON Schema of type `object`, without patterns and references. May be repeated.',
    body: askBody,
    answer: askAnswer,
    handle: async ({ body, tenant, schema, db, holder }) => {
      const { job_id, worker_id, name, position, parallel, suspend, release_lane, ...asked } = body;
      const timeout_seconds = asked.timeout_seconds ?? deps.config.questionTimeoutSeconds;
      const question = { ...checkQuestion(asked, { trusted: false }), timeout_seconds };
      const answer = await askFromWorker(db, schema, {
        ...holder,
        call: { name, position, parallel },
        question,
        suspend,
        releaseLane: release_lane,
        rules: rulesOf(deps, tenant),
      });
      if (answer.suspended !== undefined) attemptEnded(deps, tenant);
      else deps.signals.jobsWritten(tenant);
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
  leaseCall(group, {
    name: 'sleep',
    summary: 'Sleep until a time; the job waits without a lease',
    description: 'The first request stores the end; a later one with the same name finds it.',
    body: sleepBody,
    answer: sleepAnswer,
    handle: async (call) => {
      const { name, position, parallel, until, seconds } = call.body;
      if ((until === undefined) === (seconds === undefined)) {
        throw invalidFields([{ field: 'until', message: 'give either until or seconds' }]);
      }
      const end = until === undefined ? { ms: (seconds ?? 0) * 1000 } : { until };
      const { db, schema, holder } = call;
      const wait = await call.write(() => openSleep(db, schema, holder, { name, position, parallel }, end));
      const status = wait.leftMs <= 0 ? ('over' as const) : await waitOrSuspend(deps, call);
      return { status, until: wait.until, left_ms: wait.leftMs };
    },
  });
}

function addEvent(group: RouteGroup, deps: SchedulerDependencies): void {
  leaseCall(group, {
    name: 'event',
    summary: 'Wait for an event from outside; the job waits without a lease',
    description:
      'For one that comes, or has come since the job was enqueued and was not returned by another call of the job.',
    body: eventBody,
    answer: eventAnswer,
    handle: async (call) => {
      const { name, position, parallel, event, match = null, timeout_seconds: seconds } = call.body;
      checkDocument(match, 'match', noteLimitBytes);
      const { db, schema, tenant, holder, actor } = call;
      const wanted = { event, match, ms: seconds === undefined ? null : seconds * 1000 };
      const open = () => openEventWait(db, schema, holder, { name, position, parallel }, wanted, actor);
      const found = await call.write(open);
      if (found.kind === 'open') {
        const status = await waitOrSuspend(deps, call);
        const left_ms = found.leftMs === foreverMs ? null : found.leftMs;
        return { status, until: found.until ?? null, left_ms, event: null };
      }
      deps.signals.jobsWritten(tenant);
      const over = { status: 'over', until: null, left_ms: null } as const;
      if (found.kind === 'timedOut') return { ...over, event: null };
      const { receivedAt, ...received } = found.event;
      return { ...over, event: { ...received, received_at: receivedAt } };
    },
  });
}
