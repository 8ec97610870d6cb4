// Durable calls while the database is away for a moment: each is repeated as long as the lease is trusted, and has its
// effect once, also if only its answer was lost.
import { expect, test } from 'vitest';
import { listPhases } from '../../../server/jobs/attempt/phases.ts';
import type { Job } from '../../../server/jobs/model/job.ts';
import { answerQuestion } from '../../../server/jobs/questions/answer.ts';
import { receiveEvent } from '../../../server/jobs/received/receive-event.ts';
import { defineJob } from '../../../server/worker/handlers/define-job.ts';
import { startDaemon } from '../../support/daemon/daemon.ts';
import { eventually } from '../../support/eventually.ts';
import { addJob, eventTypes, reread } from '../../support/jobs.ts';
import { checkInvariants } from '../../support/model/invariants.ts';
import { useTenantPerTest } from '../../support/postgres/database.ts';
import { startDatabaseProxy } from '../../support/postgres/proxies/database-proxy.ts';

const context = useTenantPerTest();

/** What the database was asked last before each call: the call's own statement, in SQL as the server gets it. */
const statements = {
  step: /saved as \(\s*insert into \S+phases/,
  sleep: /'sleep', \$\d+, \$\d+, 'running'/,
  event: /'event', \$\d+, \$\d+, 'running'/,
  question: /'question', \$\d+, \$\d+, 'running'/,
  children: /'children', \$\d+, \$\d+, 'pending'/,
  enqueue: /status = 'RUNNING' for share/,
  load: /"waitsUntil"/,
};

test('calls whose answers are lost with their connections are repeated, and stored once', async () => {
  const { proxy, url } = await startDatabaseProxy(context);
  let steps = 0;
  const cut = (call: keyof typeof statements) => proxy.treat(statements[call], 'dropAnswer');
  const job = defineJob({
    type: 'cut',
    async run({ step, sleepFor, waitForEvent, ask, fanOut, enqueue, waitForChildren }) {
      cut('load');
      cut('step');
      await step('step', () => ++steps);
      cut('sleep');
      await sleepFor('1h', { name: 'sleep' });
      cut('event');
      const event = await waitForEvent('go', { name: 'event' });
      cut('question');
      const { action } = await ask({ title: 'Go?', actions: ['Yes', 'No'], name: 'question' });
      cut('children');
      const results = await fanOut('children', [1, 2], () => ({ type: 'child', payload: {} }));
      cut('enqueue');
      await enqueue('child', {});
      const rest = await waitForChildren();
      return { event: event.data, action, results, rest };
    },
  });
  const child = defineJob({ type: 'child', run: () => 'child' });
  const daemon = await startDaemon({ ...context, url }, { handlers: [job, child], env: { LEASE_SECONDS: '60' } });
  try {
    const { id } = await addJob(context, { type: 'cut', maxAttempts: 1 });
    daemon.signals.workAvailable(context.tenant);
    const { db, schema } = context;
    await waitsFor({ id }, 'sleep');
    await db.query(`update ${schema}.phases set waits_until = now() where job_id = $1`, [id]);
    await db.query(`update ${schema}.jobs set run_at = now() where id = $1`, [id]);
    await waitsFor({ id }, 'event');
    await receiveEvent(db, schema, { name: 'go', data: 1 }, 'test');
    daemon.onEventReceived(context.tenant);
    const { waiting } = await waitsFor({ id }, 'question');
    await answerQuestion(db, schema, { questionId: waiting?.question as string, action: 'Yes', actor: 'user:ann' });
    const ended = await eventually(async () => {
      const now = await reread(context, { id });
      expect({ status: now.status, error: now.error }).toEqual({ status: 'SUCCESS', error: null });
      return now;
    });
    expect(ended.result).toEqual({ event: 1, action: 'Yes', results: ['child', 'child'], rest: ['child'] });
    expect(proxy.treated.dropAnswer).toBeGreaterThanOrEqual(7);
    expect(steps).toBe(1);
    const phases = await listPhases(db, schema, id);
    expect(phases.filter(({ status }) => status !== 'completed')).toEqual([]);
    expect(phases.find(({ name }) => name === 'step')?.attempt).toBe(1);
    // One each for the step and the two waits for children.
    const events = await eventTypes(context, { id });
    expect(events.filter((type) => /job.step|received|asked|answered|retrying|failed|expired/.test(type))).toEqual([
      'job.step_completed',
      'job.event_received',
      'question.asked',
      'question.answered',
      'job.step_completed',
      'job.step_completed',
    ]);
    await checkInvariants(context);
  } finally {
    await daemon.stop(0);
  }
});

test('a phase whose answer is lost is stored once; one that ends while the database is away is stored when it is back', async () => {
  const { proxy, url } = await startDatabaseProxy(context);
  const ran: string[] = [];
  const phases = ['a', 'b', 'c'].map((name) => ({
    name,
    run: () => {
      ran.push(name);
      if (name !== 'b') return void proxy.treat(statements.step, 'dropAnswer');
      proxy.refuse();
      setTimeout(() => proxy.heal(), 1000);
    },
  }));
  const handlers = [defineJob({ type: 'cut.phases', phases })];
  const daemon = await startDaemon({ ...context, url }, { handlers, env: { LEASE_SECONDS: '60' } });
  try {
    const { id } = await addJob(context, { type: 'cut.phases', maxAttempts: 1 });
    daemon.signals.workAvailable(context.tenant);
    await eventually(async () =>
      expect(await reread(context, { id })).toMatchObject({ status: 'SUCCESS', attempt: 1, error: null }),
    );
    expect(ran).toEqual(['a', 'b', 'c']);
    expect(proxy.treated.dropAnswer).toBe(2);
    const stored = await listPhases(context.db, context.schema, id);
    expect(stored.map(({ status, attempt }) => `${status} ${attempt}`)).toEqual(ran.map(() => 'completed 1'));
    expect((await eventTypes(context, { id })).filter((type) => type.startsWith('job.phase'))).toEqual(
      ran.flatMap(() => ['job.phase_started', 'job.phase_completed']),
    );
    await checkInvariants(context);
  } finally {
    await daemon.stop(0);
  }
});

async function waitsFor(job: { id: string }, kind: string): Promise<Job> {
  return eventually(async () => {
    const now = await reread(context, job);
    expect({ status: now.status, kind: now.waiting?.kind, error: now.error }).toEqual({
      status: 'WAITING',
      kind,
      error: null,
    });
    return now;
  });
}

test('the result of a step is stored when the database is back', async () => {
  const { proxy, url } = await startDatabaseProxy(context);
  let steps = 0;
  const job = defineJob({
    type: 'away',
    run: ({ step }) =>
      step('step', () => {
        proxy.refuse();
        setTimeout(() => proxy.heal(), 1000);
        return ++steps;
      }),
  });
  const daemon = await startDaemon({ ...context, url }, { handlers: [job], env: { LEASE_SECONDS: '60' } });
  try {
    const { id } = await addJob(context, { type: 'away', maxAttempts: 1 });
    daemon.signals.workAvailable(context.tenant);
    await eventually(async () => {
      expect(await reread(context, { id })).toMatchObject({ status: 'SUCCESS', attempt: 1, result: 1, error: null });
    });
    expect(steps).toBe(1);
  } finally {
    await daemon.stop(0);
  }
});
