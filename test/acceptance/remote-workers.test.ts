// The worker clients against a whole daemon: its sweeper, its own workers, its restart.
import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import { describe, expect, onTestFinished, test } from 'vitest';
import type { Daemon } from '../../server/daemon/daemon.ts';
import { freePort } from '../../server/embedded-postgres/cluster.ts';
import { pauseJob } from '../../server/jobs/actions/pause-and-cancel.ts';
import { createApiKey } from '../../server/tenants/api-keys/key-store.ts';
import { updateTenantSettings } from '../../server/tenants/tenant-store.ts';
import { defineJob } from '../../server/worker/handlers/define-job.ts';
import { useCompiled } from '../support/daemon/compiled.ts';
import { type StartDaemon, startDaemon } from '../support/daemon/daemon.ts';
import { eventually } from '../support/eventually.ts';
import { eventTypes, reread } from '../support/jobs.ts';
import { useTenantPerTest } from '../support/postgres/database.ts';

const context = useTenantPerTest();
const pathTo = (file: string) => fileURLToPath(new URL(`../../${file}`, import.meta.url));
const hasPython = spawnSync('python3', ['--version']).status === 0;
const compiled = useCompiled(['scripts/clients/example-worker.ts']);
const clients = [
  {
    name: 'TypeScript',
    missing: false,
    command: () => [process.execPath, compiled.pathTo('scripts/clients/example-worker.ts')],
  },
  {
    name: 'Python (needs python3)',
    missing: !hasPython,
    command: () => ['python3', pathTo('scripts/clients/python/leasehold/worker.py')],
  },
];

async function start(given: StartDaemon = {}): Promise<{ daemon: Daemon; key: string }> {
  const daemon = await startDaemon(context, given);
  const scopes = ['read', 'enqueue', 'control', 'worker'] as const;
  const { text } = await createApiKey(context.db, { tenantId: context.tenant.id, name: 'test', scopes: [...scopes] });
  return { daemon, key: text };
}

function startWorker(command: string[], daemon: Daemon, key: string, queue: string, ttlSeconds = 15): ChildProcess {
  const [program = '', ...args] = command;
  const env = {
    ...process.env,
    LEASEHOLD_URL: daemon.url,
    LEASEHOLD_KEY: key,
    LEASEHOLD_QUEUE: queue,
    LEASEHOLD_TTL_SEC: String(ttlSeconds),
  };
  const worker = spawn(program, args, { env, stdio: 'ignore' });
  onTestFinished(async () => {
    if (worker.exitCode !== null || worker.signalCode !== null) return;
    worker.kill('SIGKILL');
    await once(worker, 'exit');
  });
  return worker;
}

async function call(daemon: Daemon, key: string, path: string, body?: object) {
  const headers = { authorization: `Bearer ${key}`, 'content-type': 'application/json' };
  const init = body ? { method: 'POST', headers, body: JSON.stringify(body) } : { headers };
  const response = await fetch(`${daemon.url}/api/scheduler${path}`, init);
  // biome-ignore lint/suspicious/noExplicitAny: read as a client without types would.
  return (await response.json()) as any;
}

async function submit(daemon: Daemon, key: string, queue: string, seconds: number): Promise<{ id: string }> {
  const body = { addon_id: queue, job_type: 'count', payload: { seconds } };
  return { id: (await call(daemon, key, '/jobs/submit', body)).job.job_id };
}

describe.each(clients)('$name', ({ name, missing, command }) => {
  test.skipIf(missing)('works, reports, pauses, and drains on SIGTERM', async () => {
    const { daemon, key } = await start();
    const worker = startWorker(command(), daemon, key, name);
    const quick = await submit(daemon, key, name, 0.1);
    await eventually(async () => expect((await reread(context, quick)).status).toBe('SUCCESS'));
    expect(await reread(context, quick)).toMatchObject({ result: { counted: 0.1 }, attempt: 1 });
    expect(await eventTypes(context, quick)).toEqual([
      'job.enqueued',
      'job.claimed',
      'job.preparing',
      'job.lease_granted',
      'job.completed',
    ]);
    const long = await submit(daemon, key, name, 600);
    await eventually(async () => expect((await reread(context, long)).progressMessage).toMatch(/of 600/));
    await pauseJob(context.db, context.schema, { jobId: long.id, actor: 'user:ann', author: 'ann' });
    await eventually(async () => expect((await reread(context, long)).status).toBe('PAUSED'));
    worker.kill('SIGTERM');
    const [code] = await once(worker, 'exit');
    expect(code).toBe(0);
  });

  test.skipIf(missing)('survives a restart of the daemon', async () => {
    const queue = `${name} restart`;
    const port = String(await freePort());
    const first = await start({ env: { PORT: port } });
    // The lease outlasts the restart, however long that takes.
    startWorker(command(), first.daemon, first.key, queue, 120);
    const running = await submit(first.daemon, first.key, queue, 4);
    await eventually(async () => expect((await reread(context, running)).status).toBe('RUNNING'));
    await first.daemon.stop(0);
    const second = await start({ env: { PORT: port } });
    await eventually(async () => expect((await reread(context, running)).status).toBe('SUCCESS'));
    expect((await reread(context, running)).attempt).toBe(1);
    const next = await submit(second.daemon, second.key, queue, 0.1);
    await eventually(async () => expect((await reread(context, next)).status).toBe('SUCCESS'));
  });
});

test('the daemon requeues the job of a worker that was killed', async () => {
  const { daemon, key } = await start();
  const claimed = async (worker_id: string) =>
    (await call(daemon, key, '/jobs/claim', { addon_id: 'killed', worker_id, wait_sec: 20 })).job;
  const body = { addon_id: 'killed', job_type: 'count', max_attempts: 2 };
  const { job_id } = (await call(daemon, key, '/jobs/submit', body)).job;
  await claimed('w1');
  await call(daemon, key, '/lease/request', { job_id, ttl_sec: 1 });
  // The next claim waits; the sweeper's recovery wakes it. On a busy machine a second one may have to wait.
  const again = await eventually(() => claimed('w2'));
  expect(again).toMatchObject({ job_id, attempts: 1, claimed_by: 'w2' });
});

test("the daemon's own jobs and remote ones share the capacity", async () => {
  await updateTenantSettings(context.db, context.tenant.slug, { capacity_units: 10 });
  const waiting: (() => void)[] = [];
  const gated = defineJob({ type: 'gated', run: () => new Promise<void>((resolve) => waiting.push(resolve)) });
  const { daemon, key } = await start({ handlers: [gated], env: { LEASE_SECONDS: '60' } });
  await daemon.registry.refresh();
  const tenant = daemon.registry.bySlug(context.tenant.slug)!;
  const one = { type: 'gated', payload: {}, costUnits: 6 };
  const jobs = await daemon.enqueue(tenant, [one, one, one], 'test');
  const remote = (await call(daemon, key, '/jobs/submit', { addon_id: 'remote', job_type: 'count', cost_units: 6 }))
    .job;
  await call(daemon, key, '/jobs/claim', { addon_id: 'remote', worker_id: 'w1' });
  for (let left = jobs.length; left > 0; left--) {
    await eventually(() => expect(waiting).toHaveLength(1));
    // The one that runs takes six of the ten: there is no room for a second, here or remote.
    expect((await call(daemon, key, '/stats/snapshot')).capacity.used).toBe(6);
    expect(await call(daemon, key, '/lease/request', { job_id: remote.job_id })).toMatchObject({ approved: false });
    waiting.shift()?.();
  }
  await eventually(async () => {
    for (const { job } of jobs) expect((await reread(context, job)).status).toBe('SUCCESS');
  });
});

test('time series have the shape of the contract', async () => {
  const { daemon, key } = await start();
  const answer = await call(daemon, key, '/stats/timeseries?metric=leases_active&bucket=5m&range=24h');
  expect(answer).toMatchObject({ metric: 'leases_active', bucket: '5m' });
  expect(answer.points).toHaveLength(288);
  expect(answer.points[0]).toEqual({ ts: expect.stringMatching(/T\d\d:\d[05]:00Z$/), value: expect.any(Number) });
});
