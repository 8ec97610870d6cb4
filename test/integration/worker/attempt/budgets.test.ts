// Budgets in any unit: of a job, of each job, of a day; held with unit, used and limit; raised and resumed by a person.
import { expect, test } from 'vitest';
import { z } from 'zod';
import { createApiKey } from '../../../../server/tenants/api-keys/key-store.ts';
import { defineJob } from '../../../../server/worker/handlers/define-job.ts';
import { startDaemon, useDaemon } from '../../../support/daemon/daemon.ts';
import { eventually } from '../../../support/eventually.ts';
import { addJob, reread } from '../../../support/jobs.ts';
import { addTenant, useDatabase } from '../../../support/postgres/database.ts';
import { startDatabaseProxy } from '../../../support/postgres/proxies/database-proxy.ts';

const context = useDatabase();
const spend = defineJob({
  type: 'spend',
  payload: z.record(z.string(), z.number()),
  run: async ({ payload, addUsage, job }) => {
    await addUsage(payload);
    await addUsage(payload);
    return job.attempt;
  },
});
const thought: string[] = [];
const think = defineJob({
  type: 'think',
  run: async ({ step, addUsage, job }) => {
    for (const n of [1, 2, 3]) {
      await step(
        'think',
        async () => {
          thought.push(`${job.id} ${n}`);
          await addUsage({ cents: 10 });
          return n;
        },
        { key: n },
      );
    }
    return job.attempt;
  },
});
const running = useDaemon(context, { handlers: [spend, think] });

async function tenantWithKey(slug: string) {
  const { tenant } = await addTenant(context.db, slug);
  await running.daemon.context.registry.refresh();
  const scopes = ['read', 'enqueue', 'control', 'worker', 'admin'] as const;
  const { text } = await createApiKey(context.db, { tenantId: tenant.id, name: 'test', scopes: [...scopes] });
  const call = async (method: string, path: string, body?: unknown) => {
    const response = await fetch(`${running.daemon.url}${path}`, {
      method,
      headers: { Authorization: `Bearer ${text}`, 'Content-Type': 'application/json' },
      ...(body !== undefined && { body: JSON.stringify(body) }),
    });
    // biome-ignore lint/suspicious/noExplicitAny: the tests say what is in it
    const read: any = response.status === 204 ? null : await response.json();
    return { status: response.status, body: read };
  };
  const run = async (body: object) => {
    const { id } = (await call('POST', '/api/jobs', { type: 'spend', ...body })).body;
    return ended(id);
  };
  const ended = (id: string) =>
    eventually(async () => {
      const { body } = await call('GET', `/api/jobs/${id}`);
      expect(['SUCCESS', 'ERROR']).toContain(body.status);
      return body;
    });
  return { call, run, ended };
}

test('the budget of a job holds it with unit, used and limit; a person raises it and resumes', async () => {
  const { call, run, ended } = await tenantWithKey('ofjob');
  const held = await run({ payload: { cents: 0.3, tokens: 5 }, budget: { cents: 0.5 } });
  expect(held).toMatchObject({
    status: 'ERROR',
    hold: { kind: 'budget', reason: 'Budget exceeded: used 0.6 of 0.5 cents.' },
    error: { code: 'BUDGET_SPENT', details: { unit: 'cents', used: 0.6, limit: 0.5, per: 'job' } },
    usage: { tokens: 10, token_limit: null, units: { cents: 0.6 }, budget: { cents: 0.5 } },
  });
  expect((await call('GET', '/api/jobs?hold_kind=budget')).body.jobs).toHaveLength(1);
  await call('POST', `/api/jobs/${held.id}/resume`, { budget: { cents: 2 } });
  const done = await eventually(async () => {
    const job = await ended(held.id);
    expect(job.status).toBe('SUCCESS');
    return job;
  });
  expect(done.usage).toMatchObject({ tokens: 20, units: { cents: 1.2 }, budget: { cents: 2 } });
  expect(
    (await call('GET', '/api/stats/usage')).body.usage.map(({ day: _, ...rest }: { day: string }) => rest),
  ).toEqual([
    { unit: 'cents', type: null, used: 1.2 },
    { unit: 'tokens', type: null, used: 20 },
    { unit: 'cents', type: 'spend', used: 1.2 },
    { unit: 'tokens', type: 'spend', used: 20 },
  ]);
});

test('a step that has passed the budget is stored: after a raise nothing is paid for twice', async () => {
  const { call, run, ended } = await tenantWithKey('steps');
  const held = await run({ type: 'think', budget: { cents: 15 } });
  expect(held).toMatchObject({ status: 'ERROR', error: { code: 'BUDGET_SPENT' }, usage: { units: { cents: 20 } } });
  expect(held.phases.map(({ name, status }: { name: string; status: string }) => [name, status])).toEqual([
    ['think#1', 'completed'],
    ['think#2', 'completed'],
  ]);
  await call('POST', `/api/jobs/${held.id}/resume`, { budget: { cents: 100 } });
  const done = await eventually(async () => {
    const job = await ended(held.id);
    expect(job.status).toBe('SUCCESS');
    return job;
  });
  expect(done.usage.units).toEqual({ cents: 30 });
  expect(thought.filter((line) => line.startsWith(held.id))).toEqual([1, 2, 3].map((n) => `${held.id} ${n}`));
});

test('the token limit works as before, and as a unit of the budget', async () => {
  const { run } = await tenantWithKey('tokens');
  const held = { status: 'ERROR', hold: { kind: 'budget' }, error: { code: 'TOKEN_LIMIT' } };
  expect(await run({ payload: { tokens: 4 }, token_limit: 5 })).toMatchObject(held);
  expect(await run({ payload: { tokens: 4 }, budget: { tokens: 5 } })).toMatchObject(held);
  expect(await run({ payload: { tokens: 4 }, budget: { tokens: 8 } })).toMatchObject({ status: 'SUCCESS' });
});

test('budgets apply per job, per day, and per target and day', async () => {
  const { call, run } = await tenantWithKey('ofdays');
  const put = (name: string, body: object) => call('PUT', `/api/budgets/${name}`, body);
  expect(await put('each', { unit: 'calls', limit: 3, per: 'job', type: 'spend' })).toMatchObject({ status: 201 });
  expect(await run({ payload: { calls: 2 } })).toMatchObject({
    status: 'ERROR',
    error: { code: 'BUDGET_SPENT', details: { unit: 'calls', used: 4, limit: 3, budget: 'each' } },
  });
  expect(await run({ payload: { calls: 2 }, budget: { calls: 4 } })).toMatchObject({ status: 'SUCCESS' });

  await put('daily', { unit: 'cents', limit: 10, per: 'day' });
  expect(await run({ payload: { cents: 4 } })).toMatchObject({ status: 'SUCCESS' });
  const over = await run({ payload: { cents: 4 } });
  expect(over).toMatchObject({ status: 'ERROR', hold: { kind: 'budget' }, error: { code: 'BUDGET_SPENT' } });
  expect(over.error.details).toMatchObject({ unit: 'cents', limit: 10, budget: 'daily', per: 'day' });
  expect((await call('GET', '/api/budgets')).body.budgets).toMatchObject([
    { name: 'daily', unit: 'cents', limit: 10, used: over.error.details.used },
    { name: 'each', used: null },
  ]);
  expect((await call('DELETE', '/api/budgets/daily')).status).toBe(204);
  expect((await call('DELETE', '/api/budgets/daily')).status).toBe(404);

  await put('target', { unit: 'cents', limit: 5, per: 'target_day' });
  const onTarget = await run({ payload: { cents: 3 }, target_id: 'm1' });
  expect(onTarget.error.details).toMatchObject({ unit: 'cents', limit: 5, budget: 'target', per: 'target_day' });
  expect(await run({ payload: { cents: 2 }, target_id: 'm2' })).toMatchObject({ status: 'SUCCESS' });
  expect((await put('bad', { unit: 'Cents', limit: 5, per: 'day' })).status).toBe(400);
});

test('a job that a budget has stopped asks a person: raise, resume or cancel', async () => {
  const { call, run, ended } = await tenantWithKey('asks');
  const questionOf = async (id: string) => {
    const { questions } = (await call('GET', `/api/questions?job_id=${id}&status=open`)).body;
    return questions[0];
  };
  const answer = (question: { id: string }, body: object) => call('POST', `/api/questions/${question.id}/answer`, body);
  const succeeds = (id: string) => eventually(async () => expect((await ended(id)).status).toBe('SUCCESS'));

  // The job's own budget: the answer raises it.
  const own = await run({ payload: { cents: 3 }, budget: { cents: 5 }, target_id: 'account' });
  const { id: behindId } = (await call('POST', '/api/jobs', { type: 'spend', target_id: 'account' })).body;
  const question = await questionOf(own.id);
  expect(question).toMatchObject({
    job_id: own.id,
    step: '',
    status: 'open',
    expires_at: null,
    title: 'Budget exceeded: used 6 of 5 cents. Raise the limit?',
    context: { unit: 'cents', used: 6, limit: 5, per: 'job' },
    schema: { properties: { limit: { exclusiveMinimum: 6, default: 12 } } },
    actions: [{ name: 'Raise' }, { name: 'Resume' }, { name: 'Cancel' }],
  });
  // Held and asked about, but one thing that needs a person.
  const { body: counts } = await call('GET', '/api/attention/count');
  expect(counts).toMatchObject({ error: 1, questions: 1, questions_of_holds: 1 });
  const why = (await call('GET', `/api/jobs/${own.id}/why`)).body.reasons[0];
  expect(why.release.detail).toContain(question.title);
  expect(why.release.actions[0]).toMatchObject({ action: 'answer', path: `/api/questions/${question.id}/answer` });
  const behind = (await call('GET', `/api/jobs/${behindId}/why`)).body.reasons[0];
  expect(behind).toMatchObject({
    code: 'TARGET_HELD',
    release: { detail: expect.stringContaining('Answer its question.') },
  });
  expect(behind.release.actions[0]).toEqual(why.release.actions[0]);
  expect(await answer(question, { action: 'Raise', answer: { limit: 6 } })).toMatchObject({
    status: 400,
    body: { field: 'answer.limit' },
  });
  expect(await answer(question, { action: 'Raise', answer: { limit: 50 }, author: 'ann' })).toMatchObject({
    status: 200,
    body: { status: 'answered', answered_by: 'ann' },
  });
  expect((await answer(question, { action: 'Cancel' })).status).toBe(409);
  await succeeds(own.id);
  expect((await ended(own.id)).usage).toMatchObject({ units: { cents: 12 }, budget: { cents: 50 } });

  // Tokens, raised to what is suggested. A resume by the other route closes the question of the next stop.
  const tokens = await run({ payload: { tokens: 4 }, token_limit: 5 });
  await answer(await questionOf(tokens.id), { action: 'Raise' });
  await eventually(async () => expect((await ended(tokens.id)).usage.token_limit).toBe(16));
  await succeeds(tokens.id);
  const resumed = await run({ payload: { tokens: 4 }, token_limit: 5 });
  const closed = await questionOf(resumed.id);
  await call('POST', `/api/jobs/${resumed.id}/resume`, { token_limit: 100 });
  await succeeds(resumed.id);
  expect((await call('GET', `/api/questions/${closed.id}`)).body.status).toBe('canceled');

  // A budget of the day: raised for this job, not for others. Resumed as it is, the job asks again.
  await call('PUT', '/api/budgets/daily', { unit: 'calls', limit: 5, per: 'day' });
  const day = await run({ payload: { calls: 3 } });
  const first = await questionOf(day.id);
  expect(first.context).toMatchObject({ unit: 'calls', budget: 'daily', per: 'day' });
  await answer(first, { action: 'Resume' });
  const again = await eventually(async () => {
    const next = await questionOf(day.id);
    expect(next.id).not.toBe(first.id);
    return next;
  });
  await answer(again, { action: 'Raise', answer: { limit: 1000 } });
  await succeeds(day.id);
  const other = await run({ payload: { calls: 1 } });
  expect(other).toMatchObject({ status: 'ERROR', error: { details: { limit: 5, budget: 'daily' } } });
  await answer(await questionOf(other.id), { action: 'Cancel' });
  expect((await call('GET', `/api/jobs/${other.id}`)).body.status).toBe('CANCELED');
  expect((await call('GET', '/api/questions?status=open')).body.questions).toEqual([]);
});

test('a remote worker reports totals, counted once; above the budget it is asked to stop', async () => {
  const { call } = await tenantWithKey('remote');
  await call('PUT', '/api/budgets/each', { unit: 'cents', limit: 10, per: 'job' });
  await call('POST', '/api/scheduler/jobs/submit', { addon_id: 'q', job_type: 'render' });
  const claimed = (await call('POST', '/api/scheduler/jobs/claim', { addon_id: 'q', worker_id: 'w' })).body.job;
  const lease = (
    await call('POST', '/api/scheduler/lease/request', { job_id: claimed.job_id, worker_id: 'w', ttl_sec: 60 })
  ).body;
  const leaseId = lease.lease.lease_id;
  const beat = (cents: number) =>
    call('POST', `/api/scheduler/lease/${leaseId}/heartbeat`, {
      job_id: claimed.job_id,
      worker_id: 'w',
      usage: { cents },
    });
  expect((await beat(6)).status).toBe(200);
  await beat(6);
  expect((await call('GET', '/api/stats/usage')).body.usage[0]).toMatchObject({ unit: 'cents', used: 6 });
  expect(JSON.stringify((await beat(11)).body)).toContain('"cancel_requested":true');
  await call('POST', `/api/scheduler/lease/${leaseId}/release`, {
    job_id: claimed.job_id,
    worker_id: 'w',
    status: 'CANCELED',
  });
  const { body } = await call('GET', `/api/jobs/${claimed.job_id}`);
  expect(body).toMatchObject({ status: 'ERROR', hold: { kind: 'budget' }, usage: { units: { cents: 11 } } });
  const { questions } = (await call('GET', '/api/questions?status=open')).body;
  expect(questions).toMatchObject([{ job_id: claimed.job_id, context: { unit: 'cents', used: 11, limit: 10 } }]);

  // Its own budgets are given when it is submitted, as those of other jobs.
  const submit = (budget: object) =>
    call('POST', '/api/scheduler/jobs/submit', { addon_id: 'q', job_type: 'render', budget });
  const { job } = (await submit({ cents: 30, tokens: 99.5 })).body;
  expect((await call('GET', `/api/jobs/${job.job_id}`)).body.usage).toMatchObject({
    token_limit: 99,
    budget: { cents: 30 },
  });
  const refused = await submit({ 'no unit': 1 });
  expect(refused).toMatchObject({ status: 400, body: { field: 'budget.no unit' } });
  expect(refused.body.detail).toContain('must be the name of a unit');
});

test('the last report of an attempt is written again after a passing error', async () => {
  const last = defineJob({ type: 'last', run: ({ addUsage }) => addUsage({ cents: 7 }) });
  const { tenant, schema } = await addTenant(context.db, 'lastreport');
  const { proxy, url } = await startDatabaseProxy({ ...context, schema });
  const daemon = await startDaemon({ ...context, url }, { handlers: [last] });
  try {
    // The first write, and the one at the end of the handler.
    proxy.treat(/insert into \S+usage_days/, 'deadlock', 2);
    const scene = { ...context, tenant, schema };
    const job = await addJob(scene, { type: 'last' });
    daemon.signals.workAvailable(tenant);
    const ended = await eventually(async () => {
      const found = await reread(scene, job);
      expect(found.status).toBe('SUCCESS');
      return found;
    });
    expect(ended.usage).toEqual({ cents: 7 });
  } finally {
    await daemon.stop();
  }
});
