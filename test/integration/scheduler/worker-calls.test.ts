// Durable calls from remote workers: through the TypeScript worker, and as plain requests. They are stored once, survive the
// end of a lease, and are refused without one.
import { setTimeout as delay } from 'node:timers/promises';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { z } from 'zod';
import { pauseJob } from '../../../server/jobs/actions/pause-and-cancel.ts';
import { listPhases } from '../../../server/jobs/attempt/phases.ts';
import { queueDueJobs } from '../../../server/jobs/finish/due-jobs.ts';
import { LeaseholdWorker, Stopped, type Work } from '../../../server/remote-worker/index.ts';
import { scopes } from '../../../server/tenants/api-keys/key.ts';
import { createApiKey } from '../../../server/tenants/api-keys/key-store.ts';
import { defineJob } from '../../../server/worker/handlers/define-job.ts';
import { useDaemon } from '../../support/daemon/daemon.ts';
import { eventually } from '../../support/eventually.ts';
import { eventTypes, reread } from '../../support/jobs.ts';
import { checkInvariants } from '../../support/model/invariants.ts';
import { useTenant } from '../../support/postgres/database.ts';

const context = useTenant();
const running = useDaemon(context, { handlers: [defineJob({ type: 'local', run: async ({ payload }) => payload })] });
const ran: Record<string, number> = {};
const count = (what: string) => {
  ran[what] = (ran[what] ?? 0) + 1;
  return ran[what];
};

const handlers: Record<string, (work: Work) => Promise<unknown>> = {
  async flow({ step, sleepFor, waitForEvent, fanOut, enqueue, waitForChildren, ask }) {
    count('flow');
    const charged = await step('charge', () => ({ receipt: count('charge') }));
    await sleepFor('1h');
    const event = await waitForEvent<{ amount: number }>('paid.far', { match: { invoice: 7 } });
    const doubled = await fanOut<number, number>(
      'double',
      [1, 2, 3],
      (n) => ({ type: 'double', queue: 'far', payload: n }),
      {
        concurrency: 2,
      },
    );
    await enqueue('local', { from: 'far' });
    const [local] = await waitForChildren<{ from: string }>();
    const { sure } = await ask({ title: 'Sure, far away?', schema: z.object({ sure: z.boolean() }) });
    const tail = await step('tail', () => count('tail'));
    return { charged, amount: event.data.amount, doubled, local, sure, tail };
  },
  double: async ({ job }) => Number(job.payload) * 2,
  async together({ sleepFor, waitForEvent, step }) {
    const [, event] = await Promise.all([
      sleepFor('1d', { name: 'long' }),
      waitForEvent('never.comes', { timeoutSeconds: 60 }),
      step('beside', () => count('beside')),
    ]);
    return event ?? 'none';
  },
  async changed({ step, sleepFor }) {
    await step(count('changed') === 1 ? 'before' : 'after', () => 1);
    await sleepFor('1h');
  },
  async forgets({ step, sleepFor }) {
    if (count('forgets') > 1) return 'nothing done';
    await step('charge', () => 1);
    await sleepFor('1h');
    return 'not reached';
  },
  async stopsEarly({ job, step }) {
    await step('before', () =>
      pauseJob(context.db, context.schema, { jobId: job.job_id, actor: 'user:ann' }).then(() => 1),
    );
    await step('after', () => count('after a pause'));
  },
  async spends({ addUsage, step }) {
    await addUsage({ cents: 3 });
    await step('paid', () => addUsage({ cents: 6, tokens: 10 }));
    await step('next', () => count('after the budget'));
  },
  async fails({ step }) {
    await step('broken', () => {
      throw Object.assign(new Error('no such account'), { code: 'NO_ACCOUNT' });
    });
  },
  async edges({ enqueue }) {
    const first = await enqueue('local', 1, { runAt: '2199-01-01T00:00:00Z', key: 'first' });
    const second = await enqueue('local', 2, { after: [{ job: first.id, onFailure: 'cancel' }], key: 'second' });
    const unknown = await enqueue('nobody.knows', {}).catch((error) => error.code);
    const missing = await enqueue('local', 3, { after: ['no-such-job'] }).catch((error) => error.code);
    return { first: first.id, second: second.id, unknown, missing };
  },
  async large({ step, sleepFor }) {
    const lengths: number[] = [];
    for (let n = 5; n > 0; n--) {
      const text = await step(`part ${n}`, () => String(count('large')).repeat(300_000));
      lengths.push(text.length);
    }
    await sleepFor('1h');
    return lengths;
  },
  async suspended({ step }) {
    await step('effect', () => count('after a suspension'));
  },
  async seesStopped({ sleepFor }) {
    await sleepFor('1h').catch((error) => {
      ran.stopped = error instanceof Stopped && error.reason === 'waiting' ? 1 : 0;
      throw error;
    });
  },
};

let key = '';
let worker: LeaseholdWorker;
let working: Promise<void>;
beforeAll(async () => {
  key = (await createApiKey(context.db, { tenantId: context.tenant.id, name: 'far', scopes })).text;
  const options = { url: running.daemon.url, key, queue: 'far', concurrency: 4 };
  worker = new LeaseholdWorker(options, (work) =>
    (handlers[work.job.job_type] as (work: Work) => Promise<unknown>)(work),
  );
  working = worker.run();
});
afterAll(async () => {
  worker.drain();
  await working;
});

async function call(method: string, path: string, body?: unknown) {
  const response = await fetch(`${running.daemon.url}/api${path}`, {
    method,
    headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
    ...(body !== undefined && { body: JSON.stringify(body) }),
  });
  // biome-ignore lint/suspicious/noExplicitAny: as a client without types reads it.
  return { status: response.status, body: (await response.json()) as any };
}

async function submit(type: string, more: object = {}): Promise<{ id: string }> {
  const { status, body } = await call('POST', '/scheduler/jobs/submit', { addon_id: 'far', job_type: type, ...more });
  expect(status, JSON.stringify(body)).toBe(201);
  return { id: body.job.job_id };
}

function becomes(job: { id: string }, status: string, waitsFor?: string) {
  return eventually(async () => {
    const found = await reread(context, job);
    expect({ status: found.status, kind: waitsFor && found.waiting?.kind }).toEqual({ status, kind: waitsFor });
    return found;
  });
}

async function wake(job: { id: string }): Promise<void> {
  const { db, schema } = context;
  await db.query(`update ${schema}.phases set waits_until = now() where job_id = $1 and waits_until is not null`, [
    job.id,
  ]);
  await db.query(`update ${schema}.jobs set run_at = now() where id = $1`, [job.id]);
  await queueDueJobs(db, schema, 'test');
  running.daemon.signals.workAvailable(context.tenant);
}

test('steps, sleeps, events, children and questions happen once, over many leases', async () => {
  const job = await submit('flow', { target_id: 'lane' });
  const asleep = await becomes(job, 'WAITING', 'sleep');
  expect(asleep).toMatchObject({ leaseOwner: null, laneHead: true });
  await wake(job);
  await becomes(job, 'WAITING', 'event');
  expect((await call('POST', '/events/paid.far', { data: { invoice: 7, amount: 12 } })).status).toBe(201);
  const question = await eventually(async () => {
    const { body } = await call('GET', `/questions?job_id=${job.id}&status=open`);
    expect(body.questions).toHaveLength(1);
    return body.questions[0];
  });
  expect((await call('POST', `/questions/${question.id}/answer`, { answer: { sure: true } })).status).toBe(200);
  const done = await becomes(job, 'SUCCESS');
  expect(done.result).toEqual({
    charged: { receipt: 1 },
    amount: 12,
    doubled: [2, 4, 6],
    local: { from: 'far' },
    sure: true,
    tail: 1,
  });
  expect(ran).toMatchObject({ charge: 1, tail: 1 });
  expect(ran.flow).toBeGreaterThanOrEqual(5);
  const phases = await listPhases(context.db, context.schema, job.id);
  expect(phases.map(({ kind, name, status }) => `${kind} ${name} ${status}`)).toEqual([
    'step charge completed',
    'sleep sleep#1 completed',
    'event event:paid.far#1 completed',
    'children double completed',
    'children children#1 completed',
    'question question#1 completed',
    'step tail completed',
  ]);
  await checkInvariants(context);
});

test('concurrent waits end the attempt once, and the earliest wakes it', async () => {
  const job = await submit('together');
  const asleep = await becomes(job, 'WAITING', 'event');
  expect(Date.parse(asleep.runAt) - Date.now()).toBeLessThan(120_000);
  expect(ran.beside).toBe(1);
  await wake(job);
  expect(await becomes(job, 'SUCCESS')).toMatchObject({ result: 'none' });
  expect(ran.beside).toBe(1);
});

test('errors name a changed order and a failed step, as in a daemon', async () => {
  const changed = await submit('changed');
  await becomes(changed, 'WAITING', 'sleep');
  await wake(changed);
  expect((await becomes(changed, 'ERROR')).error).toMatchObject({
    code: 'STEP_ORDER_CHANGED',
    message: 'Call 1 of an earlier run was the step "before"; this run called the step "after".',
  });
  const forgets = await submit('forgets');
  await becomes(forgets, 'WAITING', 'sleep');
  await wake(forgets);
  expect((await becomes(forgets, 'ERROR')).error).toMatchObject({
    code: 'STEP_MISSING',
    message: 'An earlier run made the durable call "charge"; this run ended without it.',
  });
  const failed = await submit('fails');
  expect((await becomes(failed, 'ERROR')).error).toMatchObject({ code: 'NO_ACCOUNT' });
});

test('no call begins after a requested pause, before any heartbeat', async () => {
  const stopped = await becomes(await submit('stopsEarly'), 'PAUSED');
  expect(ran['after a pause']).toBeUndefined();
  expect(await listPhases(context.db, context.schema, stopped.id)).toMatchObject([{ name: 'before' }]);
});

test('usage of any unit counts against the budget, and the worker is stopped', async () => {
  await call('PUT', '/budgets/far', { unit: 'cents', limit: 5, per: 'job', type: 'spends' });
  await running.daemon.registry.refresh();
  const job = await submit('spends');
  const held = await becomes(job, 'ERROR');
  expect(held).toMatchObject({ error: { code: 'BUDGET_SPENT' }, usage: { cents: 9 }, tokensUsed: 10 });
  // What was paid for is stored, and nothing began after it.
  expect(ran['after the budget']).toBeUndefined();
  expect(await listPhases(context.db, context.schema, job.id)).toMatchObject([{ name: 'paid', status: 'completed' }]);
  const questions = await call('GET', `/questions?job_id=${job.id}&status=open`);
  expect(questions.body.questions).toHaveLength(1);
});

test('a child may run after another one, and an invalid child is refused', async () => {
  const { result } = await becomes(await submit('edges'), 'SUCCESS');
  const { first, second, ...refused } = result as Record<string, string>;
  expect(refused).toEqual({ unknown: 'UNKNOWN_JOB_TYPE', missing: 'INVALID_FIELD' });
  expect(await reread(context, { id: second as string })).toMatchObject({
    status: 'WAITING',
    waiting: { kind: 'after' },
  });
  expect((await call('POST', `/jobs/${first}/cancel`, {})).status).toBeLessThan(300);
  await becomes({ id: second as string }, 'CANCELED');
});

test('a handler that waits sees Stopped with the reason waiting', async () => {
  await becomes(await submit('seesStopped'), 'WAITING', 'sleep');
  await eventually(async () => expect(ran.stopped).toBe(1));
});

/** A job that this test holds itself. */
async function hold(more: object = {}) {
  const own = { addon_id: 'by-hand', worker_id: 'hand' };
  await call('POST', '/scheduler/jobs/submit', { addon_id: 'by-hand', job_type: 'any', ...more });
  const { job } = (await call('POST', '/scheduler/jobs/claim', own)).body;
  const { lease } = (
    await call('POST', '/scheduler/lease/request', { job_id: job.job_id, worker_id: 'hand', ttl_sec: 600 })
  ).body;
  const holder = { job_id: job.job_id, worker_id: 'hand' };
  const post = (path: string, body: object) =>
    call('POST', `/scheduler/lease/${lease.lease_id}/${path}`, { ...holder, ...body });
  const calls = () => post('calls', {});
  return { id: job.job_id as string, leaseId: lease.lease_id as string, post, calls };
}

test('every call may be repeated, also the one that ended the lease', async () => {
  const job = await hold();
  const step = { name: 'one', position: 0, parallel: false, status: 'completed', result: { n: 1 } };
  for (let n = 0; n < 2; n++)
    expect((await job.post('steps', { steps: [step] })).body).toEqual({ stored: 1, cancel_intent: null });
  expect((await job.calls()).body.calls).toMatchObject([
    { name: 'one', kind: 'step', status: 'completed', result: { n: 1 } },
  ]);
  expect((await eventTypes(context, job)).filter((type) => type === 'job.step_completed')).toHaveLength(1);
  const child = { key: 'a', job_type: 'local', payload: 1 };
  const made = [await job.post('enqueue', child), await job.post('enqueue', child)];
  expect(made[0]?.status).toBe(200);
  expect(made[1]?.body.job_id).toBe(made[0]?.body.job_id);
  const sleep = { name: 'rest', position: 1, parallel: false, seconds: 3600 };
  const stored = await job.post('sleep', { ...sleep, suspend: false });
  expect(stored.body).toMatchObject({ status: 'open' });
  const slept = await job.post('sleep', sleep);
  expect(slept.body).toMatchObject({ status: 'waiting', until: stored.body.until });
  expect((await job.post('suspend', { call: 'rest' })).body).toEqual({ status: 'waiting' });
  expect(await reread(context, job)).toMatchObject({ status: 'WAITING', waiting: { kind: 'sleep', step: 'rest' } });
  // The lease has ended: nothing else is accepted under it.
  for (const [path, body] of [
    ['steps', { steps: [step] }],
    ['enqueue', child],
    ['heartbeat', {}],
    ['event', { name: 'e', event: 'x.y' }],
    ['children', { name: 'c', jobs: [] }],
  ] as const) {
    expect(await job.post(path, body), path).toMatchObject({ status: 409, body: { code: 'LEASE_LOST' } });
  }
  expect((await job.calls()).status).toBe(409);
  expect(await eventTypes(context, job)).toContain('job.waiting');
});

test('stored calls are read in parts, or at once while they are not too large', async () => {
  const job = await hold();
  const results = ['c', 'a', 'b'].map((name, position) => ({ name, position, result: name.repeat(400_000) }));
  for (const one of results) await job.post('steps', { steps: [{ ...one, parallel: false, status: 'completed' }] });
  const names = (body: { calls: { name: string }[] }) => body.calls.map(({ name }) => name);
  const first = (await job.post('calls', { after: '' })).body;
  expect([names(first), first.next]).toEqual([['a', 'b'], 'b']);
  const rest = (await job.post('calls', { after: first.next })).body;
  expect([names(rest), rest.next]).toEqual([['c'], null]);
  const whole = (await job.calls()).body;
  expect([names(whole), whole.next]).toEqual([['c', 'a', 'b'], null]);

  const insert = `insert into ${context.schema}.phases (job_id, name, kind, position, parallel, status, result)
    select $1, 'more ' || n, 'step', 2 + n, false, 'completed', to_jsonb(repeat('x', 1000000)) from generate_series(1, 4) n`;
  await context.db.query(insert, [job.id]);
  expect(await job.calls()).toMatchObject({ status: 413, body: { code: 'PAYLOAD_TOO_LARGE' } });
  expect(names((await job.post('calls', { after: 'c' })).body)).toEqual(['more 1']);
});

test('a list of questions ends early when they are large', async () => {
  const ids: string[] = [];
  for (let n = 0; n < 4; n++) {
    const job = await hold({ target_id: `large-${n}` });
    const question = { name: 'q', title: `Question ${n}`, actions: [{ name: 'ok' }], assignees: ['reader of large'] };
    const { body } = await job.post('ask', { ...question, context: 'x'.repeat(260_000) });
    ids.unshift(body.question_id);
  }
  const found: string[] = [];
  const sizes: number[] = [];
  let next: string | null = '';
  while (next !== null) {
    const query: string = `assignee=reader%20of%20large&limit=100${next && `&cursor=${next}`}`;
    const { body } = await call('GET', `/questions?${query}`);
    found.push(...body.questions.map(({ id }: { id: string }) => id));
    sizes.push(body.questions.length);
    next = body.next_cursor;
  }
  expect(found).toEqual(ids);
  expect(sizes).toEqual([3, 1]);
});

test('a repeated question is found among more than a hundred', async () => {
  const job = await hold();
  const question = (n: number) => ({ name: `q${n}`, position: n, title: 'Sure?', actions: [{ name: 'ok' }] });
  const first = await job.post('ask', { ...question(0), suspend: false });
  for (let n = 1; n <= 100; n++) await job.post('ask', { ...question(n), suspend: false });
  expect((await job.post('suspend', { call: 'q0' })).body).toEqual({ status: 'waiting' });
  const again = await job.post('ask', question(0));
  expect(again.body).toMatchObject({ status: 'waiting', question_id: first.body.question_id });
});

test('a worker reads all its calls, however large they are', async () => {
  const job = await submit('large');
  await becomes(job, 'WAITING', 'sleep');
  await wake(job);
  expect((await becomes(job, 'SUCCESS')).result).toEqual(Array(5).fill(300_000));
  expect(ran.large).toBe(5);
});

test('a step does not begin after the process was suspended for longer than its lease', async () => {
  const job = await submit('suspended', { addon_id: 'suspended', max_attempts: 1 });
  let suspended = false;
  const suspending = new LeaseholdWorker(
    {
      ...{ url: running.daemon.url, key, queue: 'suspended', ttlSeconds: 1 },
      async fetch(url, options) {
        const response = await fetch(url, options);
        const body = await response.text();
        // The answer is in the process, which does nothing for longer than the lease.
        if (String(url).endsWith('/calls'))
          suspended = Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1100) !== 'ok';
        return new Response(body === '' ? null : body, response);
      },
    },
    (work) => handlers.suspended!(work),
  );
  const working = suspending.run();
  await eventually(() => expect(suspended).toBe(true));
  suspending.drain();
  await working;
  expect(ran['after a suspension']).toBeUndefined();
  expect((await reread(context, job)).result).toBeNull();
});

test('a handler does not begin if its job was canceled while the response to the lease request was lost', async () => {
  let isLost = false;
  await expectNoStart('lost-response', async (response, cancel) => {
    if (isLost) return response;
    isLost = true;
    await cancel();
    throw new TypeError('The connection was cut.');
  });
});

test('a handler does not begin late if its job was canceled since the lease was granted', async () => {
  await expectNoStart('late-response', async (response, cancel) => {
    await cancel();
    // Longer than a handler may begin after its stop requests were read.
    await delay(600);
    return response;
  });
});

/** Runs a worker whose responses to lease requests pass `onLease`, in which the job is canceled: no handler may begin. */
async function expectNoStart(
  queue: string,
  onLease: (response: Response, cancel: () => Promise<void>) => Promise<Response>,
): Promise<void> {
  const job = await submit('any', { addon_id: queue });
  const cancel = async () => expect((await call('POST', `/jobs/${job.id}/cancel`, {})).status).toBe(202);
  let starts = 0;
  const worker = new LeaseholdWorker(
    {
      ...{ url: running.daemon.url, key, queue },
      async fetch(url, options) {
        const response = await fetch(url, options);
        return String(url).endsWith('/lease/request') ? onLease(response, cancel) : response;
      },
    },
    async () => {
      starts += 1;
    },
  );
  const working = worker.run();
  await becomes(job, 'CANCELED');
  worker.drain();
  await working;
  expect(starts).toBe(0);
}

test('the lease of another worker is not found, and a call that does not wait cannot suspend', async () => {
  const job = await hold();
  const other = await call('POST', `/scheduler/lease/${job.leaseId}/sleep`, {
    ...{ job_id: job.id, worker_id: 'other', name: 'x', seconds: 1 },
  });
  expect(other.status).toBe(404);
  expect((await job.post('suspend', { call: 'nothing' })).body).toMatchObject({ code: 'INVALID_FIELD' });
  expect((await job.post('sleep', { name: 'both' })).body).toMatchObject({ code: 'INVALID_FIELD' });
  expect(await reread(context, job)).toMatchObject({ status: 'RUNNING' });
});

test('a pause that was requested before the wait stops the job instead', async () => {
  const job = await hold();
  await pauseJob(context.db, context.schema, { jobId: job.id, actor: 'user:ann' });
  expect((await job.post('sleep', { name: 'rest', seconds: 3600 })).body).toMatchObject({ status: 'stopped' });
  expect(await reread(context, job)).toMatchObject({ status: 'PAUSED' });
});

test('a daily budget stops a worker, and its release asks a person', async () => {
  await call('PUT', '/budgets/far-day', { unit: 'pages', limit: 5, per: 'day', type: 'any' });
  await running.daemon.registry.refresh();
  const job = await hold();
  expect((await job.post('heartbeat', { usage: { pages: 5 } })).body).toMatchObject({ budget_spent: null });
  const beat = await job.post('heartbeat', { usage: { pages: 6 } });
  expect(beat.body).toMatchObject({
    budget_spent: { unit: 'pages', used: 6, limit: 5, per: 'day', budget: 'far-day' },
    job: { cancel_requested: true, usage: { pages: 6 } },
  });
  const released = await job.post('release', { status: 'CANCELED' });
  expect(released.status).toBe(200);
  expect(await reread(context, job)).toMatchObject({ status: 'ERROR', error: { code: 'BUDGET_SPENT' } });
});
