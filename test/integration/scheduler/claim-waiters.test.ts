// Claims that wait: woken by work, ended by time, and asked once for all that are alike.
import { expect, onTestFinished, test } from 'vitest';
import { schedulerRoutes } from '../../../server/daemon/create-api.ts';
import { StepGroupCommit } from '../../../server/jobs/attempt/step-group-commit.ts';
import { CommitSignals } from '../../../server/jobs/commit-signals.ts';
import { QueueLimit } from '../../../server/jobs/enqueue/enqueue-limits.ts';
import { createLogger } from '../../../server/kernel/logger.ts';
import { ClaimWaiters } from '../../../server/scheduler/claim-waiters.ts';
import { HandlerRegistry } from '../../../server/worker/handlers/handler-registry.ts';
import { eventually } from '../../support/eventually.ts';
import { startApp } from '../../support/http/app.ts';
import { useScheduler } from '../../support/http/scheduler.ts';
import { staysOpen } from '../../support/postgres/database.ts';

const api = useScheduler();
const waiting = (count: number) => eventually(() => expect(api.waiters.size).toBe(count));

test('a waiting claim gets a job that is submitted meanwhile', async () => {
  const claim = api.claim({ addon_id: 'slow', wait_sec: 30 });
  await waiting(1);
  const { job_id } = await api.submit({ addon_id: 'slow' });
  expect(await claim).toMatchObject({ job_id, state: 'CLAIMED' });
});

test('a waiting claim gets a job that was locked when it was tried, without another wake-up', async () => {
  const { db, schema } = api.tenant;
  const { job_id } = await api.submit({ addon_id: 'locked' });
  const claim = await db.transaction(async (tx) => {
    await tx.query(`select 1 from ${schema}.jobs where id = $1 for update`, [job_id]);
    const claiming = { answer: api.claim({ addon_id: 'locked', wait_sec: 100_000 }) };
    await waiting(1);
    return claiming;
  }, staysOpen);
  expect(await claim.answer).toMatchObject({ job_id, state: 'CLAIMED' });
});

test('it ends with 204 when its time is over, and with the server', async () => {
  expect(await api.claim({ addon_id: 'none', wait_sec: 0.05 })).toBeUndefined();
  const claim = api.claim({ addon_id: 'none', wait_sec: 100_000 });
  await waiting(1);
  await api.waiters.stop();
  expect(await claim).toBeUndefined();
  await api.waiters.start();
});

test('a client that disconnected takes no job', async () => {
  const gone = new AbortController();
  const claim = fetch(`${api.app.url}/api/scheduler/jobs/claim`, {
    method: 'POST',
    headers: { authorization: `Bearer ${api.key}`, 'content-type': 'application/json' },
    body: JSON.stringify({ addon_id: 'left', worker_id: 'gone', wait_sec: 30 }),
    signal: gone.signal,
  });
  await waiting(1);
  gone.abort();
  await expect(claim).rejects.toThrow();
  await waiting(0);
  const { job_id } = await api.submit({ addon_id: 'left' });
  expect(await api.claim({ addon_id: 'left' })).toMatchObject({ job_id });
});

test('only a worker that meets the requirements gets the job, whoever waited first', async () => {
  const plain = api.claim({ addon_id: 'gpu', wait_sec: 30, worker_id: 'plain' });
  await waiting(1);
  const able = api.claim({
    addon_id: 'gpu',
    wait_sec: 30,
    worker_id: 'able',
    constraints_capabilities: { gpu_available: true },
  });
  await waiting(2);
  await api.submit({ addon_id: 'gpu', constraints: { gpu_required: true } });
  expect(await able).toMatchObject({ claimed_by: 'able' });
  await api.submit({ addon_id: 'gpu' });
  expect(await plain).toMatchObject({ claimed_by: 'plain' });
});

test('a hundred equal waiting claims cost one attempt per wake-up', async () => {
  const waiters = new ClaimWaiters(3_600_000, createLogger('silent'));
  let attempts = 0;
  let jobs = 0;
  const claims = Array.from({ length: 100 }, () =>
    waiters.claim({
      schema: 's',
      keyId: 'k',
      queue: 'q',
      criteria: 'same',
      waitMs: 60_000,
      signal: new AbortController().signal,
      attempt: async () => {
        attempts++;
        return jobs > 0 ? jobs-- : undefined;
      },
    }),
  );
  await eventually(() => expect(waiters.size).toBe(100));
  attempts = 0;
  waiters.wake('s');
  await eventually(() => expect(attempts).toBe(1));
  jobs = 3;
  waiters.wake('s', 'q');
  await eventually(() => expect([waiters.size, attempts]).toEqual([97, 1 + 3 + 1]));
  await waiters.stop();
  expect((await Promise.all(claims)).filter((got) => got !== undefined)).toHaveLength(3);
});

test('work that arrives during the first attempt is not missed', async () => {
  const waiters = new ClaimWaiters(3_600_000, createLogger('silent'));
  let tries = 0;
  const got = await waiters.claim({
    schema: 's',
    keyId: 'k',
    queue: 'q',
    criteria: '',
    waitMs: 60_000,
    signal: new AbortController().signal,
    attempt: async () => {
      if (tries++ > 0) return 'job';
      waiters.wake('s', 'q');
      return undefined;
    },
  });
  expect(got).toBe('job');
});

test('a key has a limited number of waiting claims; a claim that finds work does not wait', async () => {
  const waiters = new ClaimWaiters(3_600_000, createLogger('silent'), { total: 100, perTenant: 3, perKey: 2 });
  const claim = (schema: string, keyId: string, found?: string) =>
    waiters.claim({
      schema,
      keyId,
      queue: 'q',
      criteria: '',
      waitMs: 60_000,
      signal: new AbortController().signal,
      attempt: async () => found,
    });
  const held = [claim('s', 'a'), claim('s', 'a'), claim('s', 'b')];
  await eventually(() => expect(waiters.size).toBe(3));
  await expect(claim('s', 'b')).rejects.toMatchObject({
    code: 'TOO_MANY_REQUESTS',
    extra: { scope: 'tenant', limit: 3 },
  });
  expect(await claim('s', 'b', 'job')).toBe('job');
  const other = [claim('t', 'c'), claim('t', 'c')];
  await eventually(() => expect(waiters.size).toBe(5));
  await expect(claim('t', 'c')).rejects.toMatchObject({ extra: { scope: 'key', limit: 2 } });
  await waiters.stop();
  await Promise.all([...held, ...other]);
  expect(waiters.size).toBe(0);
});

test('over HTTP the answer is 429 with Retry-After, and a freed place is taken again', async () => {
  const waiters = new ClaimWaiters(3_600_000, createLogger('silent'), { total: 100, perTenant: 1 });
  const { app, stop } = await startApp(api.tenant, (deps) => ({
    routes: schedulerRoutes({
      ...deps,
      waiters,
      signals: new CommitSignals(),
      queueLimit: new QueueLimit(deps.db),
      stepCommits: new StepGroupCommit(deps.db),
      jobTypes: new HandlerRegistry([]),
    }),
  }));
  onTestFinished(async () => {
    await waiters.stop();
    await stop();
  });
  const key = await app.keyFor(api.tenant.tenant.id);
  const claim = (wait_sec: number) =>
    app.request('POST', '/api/scheduler/jobs/claim', { key, body: { addon_id: 'none', worker_id: 'w', wait_sec } });
  const first = claim(30);
  await eventually(() => expect(waiters.size).toBe(1));
  const refused = await claim(30);
  expect(refused).toMatchObject({ status: 429, body: { code: 'TOO_MANY_REQUESTS', scope: 'tenant', limit: 1 } });
  expect(Number(refused.headers.get('retry-after'))).toBeGreaterThan(0);
  expect((await claim(0)).status).toBe(204);
  await waiters.stop();
  expect((await first).status).toBe(204);
  await waiters.start();
  const second = claim(30);
  await eventually(() => expect(waiters.size).toBe(1));
  await waiters.stop();
  expect((await second).status).toBe(204);
});
