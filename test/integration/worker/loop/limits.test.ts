// Limits that two daemons and a remote worker share.
import { expect, test } from 'vitest';
import { enqueue } from '../../../../server/jobs/enqueue/enqueue.ts';
import { limitKeysOf } from '../../../../server/jobs/limits/limit-keys.ts';
import { createApiKey } from '../../../../server/tenants/api-keys/key-store.ts';
import { defineJob } from '../../../../server/worker/handlers/define-job.ts';
import { startDaemon } from '../../../support/daemon/daemon.ts';
import { eventually } from '../../../support/eventually.ts';
import { expireLease } from '../../../support/jobs.ts';
import { useTenant } from '../../../support/postgres/database.ts';

const context = useTenant();

test('two daemons share a declared concurrency limit, set a rate by API, and a remote worker waits for its token', async () => {
  const { db, schema, tenant } = context;
  let running = 0;
  let max = 0;
  let runs = 0;
  const limited = defineJob({
    type: 'limited',
    limits: [{ name: 'account', concurrency: 2, key: 'payload.account' }],
    retry: { attempts: 3 },
    run: async () => {
      running += 1;
      runs += 1;
      max = Math.max(max, running);
      await new Promise((resolve) => setTimeout(resolve, 5));
      running -= 1;
    },
  });
  const free = defineJob({ type: 'free', run: () => 'done' });
  const env = { SWEEP_INTERVAL_SECONDS: '0.2', POLL_INTERVAL_SECONDS: '600' };
  const first = await startDaemon(context, { env: { ...env, WORKER_ID: 'w1' }, handlers: [limited, free] });
  const second = await startDaemon(context, { env: { ...env, WORKER_ID: 'w2' }, handlers: [limited, free] });
  const { text: key } = await createApiKey(db, {
    tenantId: tenant.id,
    name: 'test',
    scopes: ['read', 'enqueue', 'worker', 'admin'],
  });
  const call = async (method: string, path: string, body?: unknown) => {
    const response = await fetch(`${first.url}${path}`, {
      method,
      headers: { Authorization: `Bearer ${key}`, 'Content-Type': 'application/json' },
      ...(body !== undefined && { body: JSON.stringify(body) }),
    });
    const text = await response.text();
    return { status: response.status, body: text === '' ? null : JSON.parse(text) };
  };
  expect((await call('GET', '/api/limits')).body.limits).toMatchObject([
    { name: 'account', type: 'limited', key: 'payload.account', concurrency: 2, source: 'code', waiting: 0 },
  ]);
  const jobs = Array.from({ length: 60 }, () => ({ type: 'limited', payload: { account: 'a' } }));
  const batch = await call('POST', '/api/jobs/batch', { jobs });
  expect(batch.body.created).toBe(60);
  await eventually(async () => {
    expect(await db.query(`select 1 from ${schema}.jobs where status <> 'SUCCESS'`)).toEqual([]);
  });
  expect(runs).toBe(60);
  expect(max).toBe(2);

  // A crash: a lease of a daemon that is gone keeps its slots until it is recovered.
  const declared = [
    { name: 'account', source: 'code' as const, type: 'limited', concurrency: 2, key: 'payload.account' },
  ];
  const given = { type: 'limited', payload: { account: 'b' } };
  const [lost] = await enqueue(
    db,
    schema,
    [{ ...given, maxAttempts: 3, limitKeys: limitKeysOf(declared, given) }],
    'test',
  );
  const leaseId = '01890000-0000-7000-8000-0000000000aa';
  await db.query(
    `with l as (insert into ${schema}.leases (id, kind, owner, job_ids, ttl_seconds, expires_at)
       values ($2, 'local', 'gone', array[$1::uuid], 15, now() + interval '1 hour'))
     update ${schema}.jobs set status = 'RUNNING', gated = false, attempt = 1, lease_id = $2, lease_owner = 'gone' where id = $1`,
    [lost?.job.id, leaseId],
  );
  max = 0;
  await call('POST', '/api/jobs/batch', { jobs: Array.from({ length: 10 }, () => given) });
  await eventually(async () => {
    const open = await db.query(`select status from ${schema}.jobs where status <> 'SUCCESS'`);
    expect(open).toEqual([{ status: 'RUNNING' }]);
  });
  expect(max).toBe(1);
  await expireLease(context, leaseId);
  await eventually(async () => {
    expect(await db.query(`select 1 from ${schema}.jobs where status <> 'SUCCESS'`)).toEqual([]);
  });

  // A rate by API also applies to the jobs that wait already, and `why` says when one starts.
  expect((await call('PUT', '/api/limits/account', { concurrency: 0, type: 'limited' })).status).toBe(201);
  // Until it learns of the change, the other daemon starts jobs under the previous limit.
  await eventually(() =>
    expect(second.registry.bySlug(tenant.slug)?.limits).toMatchObject([{ name: 'account', concurrency: 0 }]),
  );
  await call('POST', '/api/jobs/batch', { jobs: Array.from({ length: 3 }, () => given) });
  const stopped = await call('PUT', '/api/limits/slow', { rate: 1, per: 'hour', type: 'limited' });
  expect(stopped.body).toMatchObject({ name: 'slow', rate: 1, per: 'hour', burst: 1, source: 'settings' });
  const waiting = await eventually(async () => {
    const rows = await db.query<{ id: string; limit_keys: string[] }>(
      `select id, limit_keys from ${schema}.jobs where gated and status = 'QUEUED' order by created_at, id`,
    );
    expect(rows.map((row) => row.limit_keys)).toEqual(Array(3).fill(['type:limited', 'account', 'slow']));
    return rows;
  });
  const why = await call('GET', `/api/jobs/${waiting[2]?.id}/why`);
  expect(why.body.reasons.map((r: { code: string }) => r.code)).toEqual(['LIMITED', 'LIMITED']);
  expect(why.body.reasons[0]).toMatchObject({
    detail: expect.stringContaining('starts no job'),
    release: { detail: 'The limit is raised.', at: null, actions: [{ path: '/api/limits/account' }] },
  });
  const inHours = (Date.parse(why.body.reasons[1].release.at) - Date.now()) / 3_600_000;
  expect(inHours).toBeGreaterThan(1.9);
  expect(inHours).toBeLessThan(2.1);
  expect((await call('POST', '/api/jobs', { type: 'free' })).status).toBe(201);
  await eventually(async () => {
    expect(await db.query(`select 1 from ${schema}.jobs where type = 'free' and status = 'SUCCESS'`)).toHaveLength(1);
  });
  expect((await call('GET', '/api/limits/slow')).body).toMatchObject({
    waiting: 3,
    running: 0,
    keys: [{ value: '', waiting: 3, tokens: 1 }],
  });

  // Without the limits they start.
  expect((await call('DELETE', '/api/limits/slow')).status).toBe(204);
  expect((await call('DELETE', '/api/limits/account')).status).toBe(204);
  expect(await call('DELETE', '/api/limits/account')).toMatchObject({ status: 409, body: { code: 'CONFLICT' } });
  expect((await call('DELETE', '/api/limits/slow')).status).toBe(404);
  await eventually(async () => {
    expect(await db.query(`select 1 from ${schema}.jobs where status <> 'SUCCESS'`)).toEqual([]);
  });

  // A remote worker that waits gets the second job when its token comes.
  expect((await call('PUT', '/api/limits/gpu', { rate: 2, per: 'second', burst: 1, queue: 'gpu' })).status).toBe(201);
  for (let n = 0; n < 2; n++) await call('POST', '/api/scheduler/jobs/submit', { addon_id: 'gpu', job_type: 'render' });
  const claim = { addon_id: 'gpu', worker_id: 'remote', wait_sec: 20, limit: 2 };
  expect((await call('POST', '/api/scheduler/jobs/claim', claim)).body.jobs).toHaveLength(1);
  expect((await call('POST', '/api/scheduler/jobs/claim', claim)).body.jobs).toHaveLength(1);
  expect(await call('PUT', '/api/limits/bad', { burst: 1 })).toMatchObject({ status: 400 });
  expect(await call('PUT', '/api/limits/bad', { rate: 1, key: 'type' })).toMatchObject({ status: 400 });
});
