// Jobs that run after others, over HTTP with a daemon that runs them.
import { beforeAll, expect, test } from 'vitest';
import { followDependencies } from '../../../../../server/jobs/flows/follow-dependencies.ts';
import { createApiKey } from '../../../../../server/tenants/api-keys/key-store.ts';
import { defineJob } from '../../../../../server/worker/handlers/define-job.ts';
import { useDaemon } from '../../../../support/daemon/daemon.ts';
import { eventually } from '../../../../support/eventually.ts';
import { checkInvariants } from '../../../../support/model/invariants.ts';
import { addTenant, useTenant } from '../../../../support/postgres/database.ts';

const context = useTenant();

let isBroken = true;
const order: string[] = [];
const handlers = [
  defineJob({ type: 'note', run: ({ payload }) => order.push((payload as { name: string }).name) }),
  defineJob({
    type: 'breaks',
    run() {
      if (isBroken) throw new Error('broken');
      return 'repaired';
    },
  }),
];
const running = useDaemon(context, { handlers });

let key = '';
beforeAll(async () => {
  const scopes = ['read', 'enqueue', 'control'] as const;
  key = (await createApiKey(context.db, { tenantId: context.tenant.id, name: 'flows', scopes: [...scopes] })).text;
});

interface Answer {
  status: number;
  // biome-ignore lint/suspicious/noExplicitAny: each test knows what it asked for.
  body: any;
}

async function call(method: string, path: string, body?: unknown): Promise<Answer> {
  const response = await fetch(`${running.daemon.url}${path}`, {
    method,
    headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
    ...(body !== undefined && { body: JSON.stringify(body) }),
  });
  return { status: response.status, body: await response.json() };
}

async function enqueue(request: object): Promise<string> {
  const { status, body } = await call('POST', '/api/jobs', { type: 'note', payload: { name: 'x' }, ...request });
  expect([status, body.detail]).toEqual([201, undefined]);
  return body.id;
}

async function becomes(id: string, status: string): Promise<void> {
  await eventually(async () => expect((await call('GET', `/api/jobs/${id}`)).body.status).toBe(status));
}

test('a batch by reference runs in the order of its edges, and the graph shows it', async () => {
  const later = { type: 'note', target_id: 'flow' };
  const { status, body } = await call('POST', '/api/jobs/batch', {
    atomic: true,
    jobs: [
      { ...later, client_request_id: 'd', payload: { name: 'd' }, after: ['b', { job: 'c', on_failure: 'cancel' }] },
      { ...later, client_request_id: 'b', payload: { name: 'b' }, after: ['a'] },
      { ...later, client_request_id: 'c', payload: { name: 'c' }, after: ['a', 'b'] },
      { type: 'note', client_request_id: 'a', payload: { name: 'a' } },
    ],
  });
  expect([status, body.results?.map((item: Answer) => item.body)]).toEqual([
    201,
    [undefined, undefined, undefined, undefined],
  ]);
  const [d, b, c, a] = body.results.map((item: { job: { id: string } }) => item.job.id);
  await becomes(d, 'SUCCESS');
  expect(order.filter((name) => 'abcd'.includes(name))).toEqual(['a', 'b', 'c', 'd']);
  const { body: graph } = await call('GET', `/api/jobs/${b}/graph`);
  expect(graph.truncated).toBe(false);
  expect(new Set(graph.nodes.map((node: { id: string }) => node.id))).toEqual(new Set([a, b, c, d]));
  expect(graph.edges).toHaveLength(5);
  expect(graph.edges).toContainEqual({
    job_id: d,
    after_id: c,
    kind: 'after',
    on_failure: 'cancel',
    state: 'succeeded',
  });
  expect((await call('GET', `/api/jobs/${b}/graph?limit=2`)).body).toMatchObject({ truncated: true });
  // The same batch again returns the same jobs, whatever they ran after.
  const late = await call('POST', '/api/jobs/batch', {
    jobs: [{ type: 'note', payload: { name: 'e' }, after: ['d', a] }],
  });
  expect(late.body.results[0].job.status).toBe('QUEUED');
  await checkInvariants(context);
});

test('a failed job holds those that run after it until a person has repaired it', async () => {
  const first = await enqueue({ type: 'breaks' });
  const next = await enqueue({ after: [first], payload: { name: 'held' } });
  const canceled = await enqueue({ after: [{ job: first, on_failure: 'cancel' }] });
  const behind = await enqueue({ after: [canceled] });
  const anyway = await enqueue({ after: [{ job: first, on_failure: 'continue' }] });
  const replaced = await enqueue({ after: [first], unique: { key: 'one' } });
  await call('POST', '/api/jobs', {
    type: 'note',
    payload: { name: 'y' },
    unique: { key: 'one', conflict: 'replace' },
  });
  await becomes(first, 'ERROR');
  await becomes(canceled, 'CANCELED');
  await becomes(anyway, 'SUCCESS');
  await becomes(behind, 'PAUSED');
  const held = await call('GET', `/api/jobs/${behind}`);
  expect(held.body.hold).toMatchObject({ kind: 'dependency', reason: expect.stringContaining(canceled) });
  // No time wakes it, so it has none, also in lists.
  expect((await call('GET', `/api/jobs/${next}`)).body).toMatchObject({ status: 'WAITING', run_at: null });
  const { jobs } = (await call('GET', '/api/jobs?limit=200')).body as { jobs: { id: string; run_at: string | null }[] };
  const due = new Map(jobs.map((job) => [job.id, job.run_at]));
  expect([next, replaced].map((id) => due.get(id))).toEqual([null, null]);
  expect(due.get(first)).toEqual(expect.any(String));
  const { events } = (await call('GET', `/api/jobs/${replaced}/events`)).body as { events: { type: string }[] };
  expect(events.find(({ type }) => type === 'job.replaced')).toMatchObject({ data: { run_at: null } });
  const { body: why } = await call('GET', `/api/jobs/${next}/why`);
  expect(why.reasons).toMatchObject([
    { code: 'WAITING', detail: 'The job runs after one other job, which has not ended.' },
    {
      code: 'AFTER_JOB',
      job_id: first,
      detail: expect.stringMatching(/which is ERROR \(broken\)\.$/),
      release: { actions: [{ action: 'resume' }, { action: 'resolve' }] },
    },
  ]);
  const { body: whyHeld } = await call('GET', `/api/jobs/${behind}/why`);
  expect(whyHeld.reasons[0].release.detail).toBe(
    'Resume it to run it without that job; resolve or cancel it to end it.',
  );
  isBroken = false;
  expect((await call('POST', `/api/jobs/${first}/resume`, {})).status).toBe(200);
  await becomes(next, 'SUCCESS');
  // A person may let it run all the same.
  expect((await call('POST', `/api/jobs/${behind}/resume`, {})).status).toBe(200);
  await becomes(behind, 'SUCCESS');
  await checkInvariants(context);
});

test('pause and resume of a waiting job, resolve of the job it waits for, and a time before which it does not run', async () => {
  isBroken = true;
  const first = await enqueue({ type: 'breaks' });
  const next = await enqueue({ after: [first], target_id: 'paused' });
  const soon = new Date(Date.now() + 3_600_000).toISOString();
  const timed = await enqueue({ after: [first], run_at: soon });
  const free = await enqueue({ target_id: 'paused' });
  // It has no place in its lane before it is ready.
  await becomes(free, 'SUCCESS');
  await becomes(first, 'ERROR');
  expect((await call('POST', `/api/jobs/${next}/pause`, {})).body.status).toBe('PAUSED');
  expect((await call('POST', `/api/jobs/${next}/resume`, {})).body).toMatchObject({
    status: 'WAITING',
    waiting: { kind: 'after', jobs: 1 },
  });
  expect((await call('POST', `/api/jobs/${first}/resolve`, { result: 1 })).status).toBe(200);
  await becomes(next, 'SUCCESS');
  await eventually(async () => {
    const { body } = await call('GET', `/api/jobs/${timed}`);
    expect(body).toMatchObject({ status: 'WAITING', waiting: { kind: 'after' } });
    expect(Date.parse(body.waiting.not_before)).toBe(Date.parse(soon));
    expect(Date.parse(body.run_at)).toBe(Date.parse(soon));
  });
  await call('POST', `/api/jobs/${timed}/cancel`, {});
  await eventually(async () => expect(await followDependencies(context.db, context.schema)).toBeUndefined());
});

test('refusals name cycles, unknown jobs and jobs of other tenants', async () => {
  const job = { type: 'note', payload: { name: 'x' } };
  const circle = await call('POST', '/api/jobs/batch', {
    jobs: [
      { ...job, client_request_id: 'x1', after: ['x2'] },
      { ...job, client_request_id: 'x2', after: ['x3'] },
      { ...job, client_request_id: 'x3', after: ['x1'] },
      { ...job, client_request_id: 'x4', after: ['x1'] },
      { ...job, client_request_id: 'x5', after: ['x5'] },
      { ...job, client_request_id: 'x6', after: ['nobody'] },
      { ...job, client_request_id: 'x7', after: ['x6'] },
      { ...job, client_request_id: 'x8' },
    ],
  });
  expect(circle.body.results.map((item: { status: number }) => item.status)).toEqual([
    400, 400, 400, 400, 400, 400, 400, 201,
  ]);
  expect(circle.body.results[0].error.detail).toContain('circle');
  expect(circle.body.results[5].error.detail).toContain('nobody');
  expect(circle.body.results[6].error.detail).toContain('x6');
  const other = await addTenant(context.db);
  const [theirs] = await context.db.query<{ id: string }>(
    `insert into ${other.schema}.jobs (id, type, status, lane_head, payload) values (gen_random_uuid(), 'note', 'QUEUED', true, '{}') returning id`,
  );
  const refused = await call('POST', '/api/jobs', { ...job, after: [theirs!.id] });
  expect([refused.status, refused.body.errors?.[0]?.field ?? refused.body.field]).toEqual([400, 'after[0]']);
  const noPolicy = await call('POST', '/api/jobs', { ...job, after: [{ job: 'x8', on_failure: 'explode' }] });
  expect(noPolicy.body.detail).toContain("after[0]: must be a job's id or client_request_id, or { job, on_failure }");
});
