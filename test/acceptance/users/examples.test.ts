// The programs of docs/examples, as their readers run them, against one daemon. Their types are checked with the rest.
// The Express app has a test of its own.
import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { beforeAll, expect, onTestFinished, test, vi } from 'vitest';
import agent from '../../../docs/examples/agent-runner/jobs/agent.ts';
import { buildReport } from '../../../docs/examples/nextjs/jobs/report.ts';
import { LeaseholdClient } from '../../../server/client/index.ts';
import { packageRoot } from '../../../server/kernel/environment.ts';
import { scopes } from '../../../server/tenants/api-keys/key.ts';
import { createApiKey } from '../../../server/tenants/api-keys/key-store.ts';
import { useDaemon } from '../../support/daemon/daemon.ts';
import { eventually } from '../../support/eventually.ts';
import { useTenant } from '../../support/postgres/database.ts';

const context = useTenant();
const running = useDaemon(context, { handlers: [agent, buildReport], env: { WEBHOOK_ALLOW_PRIVATE: 'true' } });
const longTimeouts = { timeoutMs: 90_000 };
const examples = join(packageRoot(), 'docs', 'examples');
const hasPython = spawnSync('python3', ['--version']).status === 0;
let access: { LEASEHOLD_URL: string; LEASEHOLD_KEY: string };
let client: LeaseholdClient;

beforeAll(async () => {
  const key = await createApiKey(context.db, { tenantId: context.tenant.id, name: 'examples', scopes: [...scopes] });
  access = { LEASEHOLD_URL: running.daemon.url, LEASEHOLD_KEY: key.text };
  client = new LeaseholdClient({ url: access.LEASEHOLD_URL, apiKey: access.LEASEHOLD_KEY });
});

interface Program {
  child: ChildProcess;
  output(): string;
  /** The exit code. */
  ended: Promise<number | null>;
}

function run(command: string, args: string[], env: Record<string, string>): Program {
  const child = spawn(command, args, {
    cwd: packageRoot(),
    env: { PATH: process.env.PATH, HOME: process.env.HOME, PORT: '0', ...access, ...env },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  let output = '';
  for (const stream of [child.stdout, child.stderr]) stream.on('data', (data) => (output += String(data)));
  const ended = once(child, 'close').then(([code]) => code as number | null);
  onTestFinished(async () => {
    child.kill('SIGKILL');
    await ended;
  });
  return { child, output: () => output, ended };
}

/** `tsx` resolves the package's name to the sources, as tsconfig.json says. */
const runTypeScript = (file: string, env: Record<string, string> = {}) =>
  run(process.execPath, ['--import', 'tsx', join(examples, file)], env);

async function portOf(program: Program): Promise<string> {
  return eventually(() => {
    const [, port] = /listening on port (\d+)/.exec(program.output()) ?? [];
    if (port === undefined) throw new Error(`no port yet:\n${program.output()}`);
    return port;
  }, longTimeouts);
}

test('the agent runner serves twenty machines', async () => {
  const program = runTypeScript('agent-runner/run.ts', { SECONDS_PER_STEP: '0.01' });
  expect(await program.ended, program.output()).toBe(0);
  expect(program.output()).toContain('machine-20: 5 steps');
  expect(program.output()).toContain('60 of 60 jobs');
  const lane = await client.jobs.list({ targetId: 'machine-07' }).take(10);
  expect(lane.map((job) => [job.status, job.usage.tokens])).toEqual([0, 1, 2].map(() => ['SUCCESS', 2000]));
});

test('the Next.js routes enqueue a report once and show its progress', async () => {
  for (const [name, value] of Object.entries(access)) vi.stubEnv(name, value);
  onTestFinished(() => void vi.unstubAllEnvs());
  const { POST } = await import('../../../docs/examples/nextjs/app/api/reports/route.ts');
  const { GET } = await import('../../../docs/examples/nextjs/app/api/reports/[id]/route.ts');
  const post = (body: object, key = 'form-1') => {
    const headers = { 'idempotency-key': key };
    return POST(new Request('http://app/api/reports', { method: 'POST', headers, body: JSON.stringify(body) }));
  };
  const [first, second] = [await post({ customer: 'acme' }), await post({ customer: 'acme' })];
  expect(first.status).toBe(202);
  const { id } = (await first.json()) as { id: string };
  expect(await second.json()).toEqual({ id });
  const refused = await post({ customer: 'acme', pages: 'many' }, 'form-2');
  expect(refused.status).toBe(400);
  expect(JSON.stringify(await refused.json())).toContain('payload.pages');
  await eventually(async () => {
    const answer = await GET(new Request('http://app'), { params: Promise.resolve({ id }) });
    expect(await answer.json()).toMatchObject({ status: 'SUCCESS', result: { file: 'acme.pdf', pages: 5 } });
  }, longTimeouts);
});

test('the receiver accepts signed webhooks only', async () => {
  const { body } = await client.request<{ secrets: string[] }>('GET', '/api/webhooks/secret');
  const program = runTypeScript('webhook-receiver/receiver.ts', { WEBHOOK_SECRET: body.secrets[0] ?? '' });
  const webhookUrl = `http://127.0.0.1:${await portOf(program)}/`;
  const { id } = await client.enqueue('demo.echo', {}, { webhookUrl });
  await eventually(() => expect(program.output()).toContain(`job.completed ${id} SUCCESS`), longTimeouts);
  const forged = await fetch(webhookUrl, { method: 'POST', headers: { 'webhook-id': 'x' }, body: '{}' });
  expect(forged.status).toBe(401);
  program.child.kill('SIGTERM');
  expect(await program.ended, program.output()).toBe(0);
});

test.skipIf(!hasPython)('the Python worker renders and drains', async () => {
  const program = run('python3', [join(examples, 'python-worker/worker.py')], {
    PYTHONPATH: join(packageRoot(), 'scripts', 'clients', 'python'),
  });
  const { body } = await client.request<{ job: { job_id: string } }>('POST', '/api/scheduler/jobs/submit', {
    body: { addon_id: 'visuals', job_type: 'render', payload: { frames: 3 } },
  });
  await eventually(async () => {
    const job = await client.jobs.get(body.job.job_id);
    expect(job, program.output()).toMatchObject({ status: 'SUCCESS', result: { frames: 3 } });
  }, longTimeouts);
  program.child.kill('SIGTERM');
  expect(await program.ended, program.output()).toBe(0);
});
