// The Python client against a real daemon, behind a connection that loses requests, answers and streams.
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { describe, expect, it, onTestFinished } from 'vitest';
import { LeaseholdClient } from '../../../server/client/client.ts';
import { defineJob, z } from '../../../server/index.ts';
import { queueDueJobs } from '../../../server/jobs/finish/due-jobs.ts';
import { scopes } from '../../../server/tenants/api-keys/key.ts';
import { createApiKey } from '../../../server/tenants/api-keys/key-store.ts';
import { startDaemon, useDaemon } from '../../support/daemon/daemon.ts';
import { eventually } from '../../support/eventually.ts';
import { cycle, type FaultProxy, startFaultProxy } from '../../support/http/fault-proxy.ts';
import { addTenant, useDatabase } from '../../support/postgres/database.ts';

const context = useDatabase();
const hasPython = spawnSync('python3', ['--version']).status === 0;
const pathTo = (script: string) => fileURLToPath(new URL(`../../support/http/${script}`, import.meta.url));

const echo = defineJob({ type: 'echo', run: ({ payload }) => payload });
const double = defineJob({
  type: 'double',
  payload: z.object({ n: z.number() }),
  run: ({ payload, log }) => {
    log('doubling');
    return payload.n * 2;
  },
});
const failing = defineJob({
  type: 'fails',
  run: () => {
    throw new Error('no paper');
  },
});
/** Opened once: for handlers that wait, and for those that begin later. */
const gate = createGate();
/** Only the daemons of the restart run it. */
const gated = defineJob({
  type: 'gated',
  run: () => gate.opened.then(() => 'through'),
});

const running = useDaemon(context, { handlers: [echo, double, failing], env: { STREAM_PING_SECONDS: '1' } });

interface Python {
  // biome-ignore lint/suspicious/noExplicitAny: whatever the expression comes to.
  run(expression: string): Promise<any>;
  proxy: FaultProxy;
  direct: LeaseholdClient;
}

async function open(): Promise<Python> {
  const { tenant } = await addTenant(context.db);
  const { text } = await createApiKey(context.db, { tenantId: tenant.id, name: 'python', scopes: [...scopes] });
  const proxy = await startFaultProxy(running.daemon.url);
  const env = { ...process.env, LEASEHOLD_URL: proxy.url, LEASEHOLD_KEY: text, PYTHONDONTWRITEBYTECODE: '1' };
  const child = spawn('python3', [pathTo('run-python-client.py')], { env, stdio: ['pipe', 'pipe', 'inherit'] });
  const lines = createInterface({ input: child.stdout });
  onTestFinished(async () => {
    child.stdin.end();
    child.kill('SIGKILL');
    await once(child, 'close');
  });
  return {
    proxy,
    direct: new LeaseholdClient({ url: running.daemon.url, apiKey: text }),
    async run(expression) {
      const answer = once(lines, 'line');
      child.stdin.write(`${JSON.stringify(expression)}\n`);
      const { value, ...error } = JSON.parse(String((await answer)[0]));
      return 'error' in error ? error : value;
    },
  };
}

async function openWorker(workerUrl = running.daemon.url) {
  const { tenant, schema } = await addTenant(context.db);
  const { text } = await createApiKey(context.db, { tenantId: tenant.id, name: 'python', scopes: [...scopes] });
  const { url, signals } = running.daemon;
  const env = { ...process.env, LEASEHOLD_URL: workerUrl, LEASEHOLD_KEY: text, PYTHONDONTWRITEBYTECODE: '1' };
  const child = spawn('python3', [pathTo('run-python-worker.py')], { env, stdio: ['ignore', 'pipe', 'inherit'] });
  const closed = once(child, 'close');
  const effects: string[] = [];
  createInterface({ input: child.stdout }).on('line', (line) => effects.push(line));
  onTestFinished(async () => {
    child.kill('SIGTERM');
    expect(await closed).toEqual([0, null]);
  });
  const direct = new LeaseholdClient({ url, apiKey: text });
  return {
    direct,
    effects,
    async post(path: string, body: object) {
      const headers = { authorization: `Bearer ${text}`, 'content-type': 'application/json' };
      const response = await fetch(`${url}/api${path}`, { method: 'POST', headers, body: JSON.stringify(body) });
      expect(response.status).toBe(201);
      // biome-ignore lint/suspicious/noExplicitAny: as a client without types reads it.
      return (await response.json()) as any;
    },
    becomes: (id: string, status: string, waitsFor?: string) =>
      eventually(async () => {
        const job = await direct.jobs.get(id);
        expect({ status: job.status, kind: waitsFor && job.waiting?.kind }).toEqual({ status, kind: waitsFor });
        return job;
      }),
    async wake(id: string) {
      await context.db.query(
        `update ${schema}.phases set waits_until = now() where job_id = $1 and waits_until is not null`,
        [id],
      );
      await context.db.query(`update ${schema}.jobs set run_at = now() where id = $1`, [id]);
      await queueDueJobs(context.db, schema, 'test');
      signals.workAvailable(tenant);
    },
  };
}

describe.skipIf(!hasPython)('the Python worker (needs python3)', () => {
  it('begins no handler if the job was canceled while the response to the lease request was lost', async () => {
    const proxy = await startFaultProxy(running.daemon.url);
    let isCanceled = false;
    proxy.plan = ({ path }) => (path.endsWith('/lease/request') && !isCanceled ? 'dropAnswer' : 'none');
    const { direct, effects, post, becomes } = await openWorker(proxy.url);
    const request = { addon_id: 'python', job_type: 'flow' };
    const id = (await post('/scheduler/jobs/submit', request)).job.job_id;
    await becomes(id, 'RUNNING');
    await direct.jobs.cancel(id);
    isCanceled = true;
    await becomes(id, 'CANCELED');
    expect(effects).toEqual([]);
  });

  it('begins no handler late if the job was canceled since the lease was granted', async () => {
    const proxy = await startFaultProxy(running.daemon.url);
    proxy.plan = ({ path }) => (path.endsWith('/lease/request') ? 'lateAnswer' : 'none');
    const { direct, effects, post, becomes } = await openWorker(proxy.url);
    const request = { addon_id: 'python', job_type: 'flow' };
    const id = (await post('/scheduler/jobs/submit', request)).job.job_id;
    await becomes(id, 'RUNNING');
    await direct.jobs.cancel(id);
    // Longer than a handler may begin after its stop requests were read.
    await delay(600);
    await eventually(() => expect(proxy.late).toHaveLength(1));
    proxy.deliverAnswers();
    await becomes(id, 'CANCELED');
    expect(effects).toEqual([]);
  });

  it('has durable calls: each once, over many leases, in the same order', async () => {
    const { direct, effects, post, becomes, wake } = await openWorker();
    const submit = async (type: string, maxAttempts = 1): Promise<string> => {
      const request = { addon_id: 'python', job_type: type, max_attempts: maxAttempts };
      return (await post('/scheduler/jobs/submit', request)).job.job_id;
    };
    await submit('suspended');
    const [flow, changed, missing] = [await submit('flow'), await submit('changed'), await submit('missing')];
    const [twice, together, failures] = [await submit('twice'), await submit('together'), await submit('failures', 2)];
    for (const id of [flow, changed, missing]) await becomes(id, 'WAITING', 'sleep');
    for (const id of [flow, changed, missing]) await wake(id);
    await becomes(flow, 'WAITING', 'event');
    await post('/events/paid.python', { data: { invoice: 7, amount: 12 } });
    await becomes(flow, 'WAITING', 'question');
    const [question] = await direct.questions.list({ jobId: flow }).take(1);
    await direct.questions.answer(question?.id ?? '', { answer: { why: 'paid' }, action: 'Yes' });
    const done = await becomes(flow, 'SUCCESS');
    expect(done.result).toEqual({
      receipt: { receipt: 1, pair: [1, 2] },
      refused: 'ValueError',
      amount: 12,
      doubled: [2, 4, 6],
      local: [{ from: 'python' }],
      asked: { why: 'paid', action: 'Yes' },
    });
    expect(done.usage).toMatchObject({ units: { cents: 3 } });
    expect(effects.filter((name) => name === 'charge' || name === 'refused')).toEqual(['charge', 'refused']);
    expect(effects.filter((name) => name === 'flow').length).toBeGreaterThanOrEqual(5);
    expect((await becomes(changed, 'ERROR')).error).toMatchObject({
      code: 'STEP_ORDER_CHANGED',
      message: 'Call 1 of an earlier run was the step "before"; this run called the step "after".',
    });
    expect((await becomes(missing, 'ERROR')).error).toMatchObject({ code: 'STEP_MISSING' });
    expect((await becomes(twice, 'ERROR')).error).toMatchObject({ code: 'STEP_NAME_TWICE' });
    await becomes(together, 'WAITING', 'event');
    await wake(together);
    expect((await becomes(together, 'SUCCESS')).result).toBe('none');
    expect(effects.filter((name) => name === 'beside')).toHaveLength(1);
    // A failure that was caught is kept; a step whose error failed the run is made again.
    expect((await becomes(failures, 'SUCCESS')).result).toEqual({
      tried: 1,
      settled: ['succeeded', 'failed'],
      failed: 'CHILD_FAILED',
      event: null,
    });
    const own = ['tried', 'unlucky', 'after'];
    expect(effects.filter((name) => own.includes(name))).toEqual(['tried', 'tried', 'unlucky', 'after', 'unlucky']);
    await eventually(() => expect(effects).toContain('suspended'));
    expect(effects).not.toContain('began too late');
    expect(JSON.stringify(await direct.jobs.events(failures).take(100))).toContain('"ZeroDivisionError"');
  });

  it('takes durations as texts, timedeltas and seconds', async () => {
    const { direct, post, becomes } = await openWorker();
    const id = (await post('/scheduler/jobs/submit', { addon_id: 'python', job_type: 'durations' })).job.job_id;
    await becomes(id, 'WAITING', 'question');
    const [question] = await direct.questions.list({ jobId: id }).take(1);
    const seconds = (time: string | null | undefined) =>
      Math.round((Date.parse(time ?? '') - Date.parse(question?.asked_at ?? '')) / 1000);
    expect(seconds(question?.expires_at)).toBe(2 * 86_400);
    expect(question?.remind_at.map(seconds)).toEqual([60, 4 * 3600, 86_400]);
    expect(seconds(question?.escalate_at)).toBe(36 * 3600);
    await direct.questions.answer(question?.id ?? '', { action: 'Now' });
    const { result } = await becomes(id, 'SUCCESS');
    expect(result).toEqual({ action: 'Now', refused: expect.stringContaining('timout: is not a known field') });
  });

  it('stores a step that has passed the budget, and begins no other', async () => {
    const { direct, effects, post, becomes } = await openWorker();
    await direct.budgets.set('each', { unit: 'cents', limit: 5, per: 'job' });
    const id = (await post('/scheduler/jobs/submit', { addon_id: 'python', job_type: 'spends' })).job.job_id;
    const held = await becomes(id, 'ERROR');
    expect(held).toMatchObject({ error: { code: 'BUDGET_SPENT' }, usage: { units: { cents: 9 } } });
    expect(held.phases).toMatchObject([{ name: 'paid', status: 'completed' }]);
    expect(effects).not.toContain('after the budget');
  });

  it('reads stored calls that come in several parts', async () => {
    const { effects, post, becomes, wake } = await openWorker();
    const id = (await post('/scheduler/jobs/submit', { addon_id: 'python', job_type: 'large' })).job.job_id;
    await becomes(id, 'WAITING', 'sleep').then(() => wake(id));
    const { pages, parts } = (await becomes(id, 'SUCCESS')).result as { pages: unknown; parts: number };
    expect(pages).toEqual(Array.from({ length: 9 }, (_, n) => [String(n), 200_000]));
    expect(parts).toBeGreaterThan(2);
    expect(effects.filter((name) => name === 'page')).toHaveLength(9);
  });
});

describe.skipIf(!hasPython)('the Python client (needs python3)', () => {
  it('has the verbs of the API', async () => {
    const { run, direct } = await open();
    const job = await run(`client.jobs.wait(client.enqueue("double", {"n": 21}, target_id="m/1", priority="HIGH"))`);
    expect(job).toMatchObject({ status: 'SUCCESS', result: 42, target_id: 'm/1', priority: 'HIGH' });
    expect(await run(`[line["message"] for line in client.jobs.logs("${job.id}")]`)).toEqual(['doubling']);
    expect(await run(`[event["type"] for event in client.jobs.events("${job.id}")]`)).toEqual([
      'job.enqueued',
      'job.started',
      'job.completed',
    ]);
    expect(await run(`[job["id"] for job in client.jobs.list(status=["SUCCESS"], limit=1)]`)).toEqual([job.id]);
    const failed = await run(`client.enqueue("fails", target_id="m/2").id`);
    expect(await run(`client.jobs.wait("${failed}")`)).toMatchObject({ error: 'JobFailed' });
    expect(await run(`client.jobs.why("${failed}")["reasons"][0]["code"]`)).toBe('HELD');
    expect(await run(`client.hold_count()`)).toEqual({ paused: 0, error: 1, questions: 0, questions_of_holds: 0 });
    expect(await run(`client.jobs.resolve("${failed}", "by hand", author="ann")["result"]`)).toBe('by hand');
    expect(await run(`client.targets.pause("m/1", reason="oil")["pause_reason"]`)).toBe('oil');
    expect(await run(`[target["id"] for target in client.targets.list(paused=True)]`)).toEqual(['m/1']);
    expect(await run(`client.targets.resume("m/1")["paused"]`)).toBe(false);
    const schedule = await run(
      `client.schedules.create("n", "0 3 * * *", {"type": "double", "payload": {"n": 1}})["id"]`,
    );
    expect(await run(`client.jobs.wait(client.schedules.run("${schedule}"))["result"]`)).toBe(2);
    expect(await run(`client.schedules.delete("${schedule}")`)).toBeNull();
    expect(await run(`client.limits.set("slow", rate=5, per="minute")["rate"]`)).toBe(5);
    expect(await run(`[limit["name"] for limit in client.limits.list()]`)).toEqual(['slow']);
    expect(await run(`client.limits.delete("slow")`)).toBeNull();
    expect(await run(`client.budgets.set("daily", unit="cents", limit=500, per="day")["used"]`)).toBe(0);
    expect(await run(`[budget["limit"] for budget in client.budgets.list()]`)).toEqual([500]);
    expect(await run(`client.budgets.usage(days=2)`)).toEqual([]);
    expect(await run(`client.budgets.delete("daily")`)).toBeNull();
    expect(await run(`client.enqueue("echo", budget={"cents": 5}).job["usage"]["budget"]`)).toEqual({ cents: 5 });
    const asked = await run(`client.enqueue("demo.approval").id`);
    await eventually(async () => expect(await direct.questions.list({ jobId: asked }).take(1)).toHaveLength(1));
    const question = `next(client.questions.list(job="${asked}"))["id"]`;
    expect(await run(`client.questions.create_link(${question}, recipient="ann")["url"]`)).toContain('/q/');
    expect(await run(`client.questions.answer(${question}, action="reject")["status"]`)).toBe('answered');
    expect((await direct.jobs.wait({ id: asked })).result).toMatchObject({ approved: false });
    await run(`client.enqueue("double", {"n": 1}, run_at="2100-01-01T00:00:00Z").id`);
    const operation = `client.operations.wait(client.operations.start("cancel", {"type": "double"})["id"])["done"]`;
    expect(await run(operation)).toBe(1);
    expect(await run(`client.enqueue("double", {"n": "x"})`)).toMatchObject({
      error: 'Problem',
      status: 400,
      code: 'INVALID_FIELD',
      errors: [{ field: 'payload.n' }],
    });
    expect(await direct.jobs.list({ status: 'CANCELED' }).take(5)).toHaveLength(1);
  });

  it('makes exactly one job per call over an unreliable connection', async () => {
    const { run, proxy, direct } = await open();
    proxy.plan = cycle(
      'dropRequest',
      'none',
      'dropAnswer',
      'none',
      'tooMany',
      'none',
      'cutAnswer',
      'none',
      'unavailable',
      'none',
    );
    expect(new Set(await run('many(20)')).size).toBe(20);
    expect(new Set(proxy.requests.map(({ idempotencyKey }) => idempotencyKey)).size).toBe(20);
    const batch = `[r.id for r in client.enqueue_many([JobRequest("echo", {"n": n}) for n in range(1200)])]`;
    expect(new Set(await run(batch)).size).toBe(1200);
    expect(await direct.jobs.list({ limit: 200 }).take(5000)).toHaveLength(1220);
    proxy.plan = () => 'dropAnswer';
    const { id } = await direct.enqueue('echo', {}, { runAt: '2100-01-01T00:00:00Z' });
    await direct.jobs.pause(id);
    expect(await run(`client.jobs.resume("${id}")`)).toMatchObject({
      error: 'ConnectionFailed',
      may_have_happened: true,
      attempts: 1,
    });
  });

  it('yields every event once over streams that are cut off', async () => {
    const { run, proxy, direct } = await open();
    expect(await run('follow()')).toBe(true);
    const ids: string[] = [];
    for (let n = 0; n < 20; n++) {
      ids.push((await direct.enqueue(echo, { n }, { targetId: 'lane' })).id);
      if (n % 4 === 0) proxy.cutAll();
    }
    const types = ['job.enqueued', 'job.started', 'job.completed'];
    const all = ids.flatMap((id) => types.map((type) => `${id} ${type}`));
    await eventually(async () => expect(await run('len(seen)')).toBeGreaterThanOrEqual(all.length));
    expect((await run('seen')).toSorted()).toEqual(all.toSorted());
    await run('streams[0].close()');
  });

  it('waits through a restart of the daemon', async () => {
    const { run, proxy, direct } = await open();
    const first = await startDaemon(context, { handlers: [gated] });
    proxy.setTarget(first.url);
    const id = await run(`client.enqueue("gated", on_drain="requeue").id`);
    const waiting = run(`client.jobs.wait("${id}")["result"]`);
    await eventually(() => expect(proxy.requests.some(({ path }) => path.includes('/stream?'))).toBe(true));
    await first.stop(0);
    proxy.cutAll();
    proxy.setTarget((await startDaemon(context, { handlers: [gated] })).url);
    await eventually(async () => expect((await direct.jobs.get(id)).status).toBe('RUNNING'));
    gate.open();
    expect(await waiting).toBe('through');
  });
});

function createGate(): { opened: Promise<void>; open(): void } {
  let open = () => {};
  const opened = new Promise<void>((resolve) => {
    open = resolve;
  });
  return { opened, open };
}
