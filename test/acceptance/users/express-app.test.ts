// docs/examples/express-app as its readers run it, on the built package; and that importing the package does nothing.
import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { promisify } from 'node:util';
import { expect, onTestFinished, test } from 'vitest';
import { packageRoot } from '../../../server/kernel/environment.ts';
import { useBuild } from '../../support/daemon/build.ts';
import { eventually } from '../../support/eventually.ts';
import { createEmptyDatabase } from '../../support/postgres/database.ts';

useBuild();
const root = packageRoot();

test('an order and its invoice are one transaction, and the host stops its jobs', async () => {
  const database = await createEmptyDatabase();
  const env = { ...process.env, DATABASE_URL: database.url, PORT: '0' };
  const app = spawn(process.execPath, [join(root, 'docs/examples/express-app/app.mjs')], {
    env,
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const ended = once(app, 'close');
  onTestFinished(async () => {
    app.kill('SIGKILL');
    await ended;
    await database.drop();
  });
  const lines = createInterface({ input: app.stdout })[Symbol.asyncIterator]();
  const url = /http:\S+/.exec((await lines.next()).value)?.[0] ?? '';
  const order = (body: object) =>
    fetch(`${url}/orders`, {
      method: 'POST',
      headers: { 'Content-Type': 'application/json' },
      body: JSON.stringify(body),
    });
  expect((await order({ customer: 'ada', amount: 0 })).status).toBe(400);
  const made = await order({ customer: 'ada', amount: 42 });
  expect(made.status).toBe(201);
  const { id } = (await made.json()) as { id: number };
  await eventually(async () => {
    const found = (await (await fetch(`${url}/orders/${id}`)).json()) as { invoice: string | null };
    expect(found.invoice).toBe(`INV-${id}`);
  });
  expect((await fetch(`${url}/ops/api/jobs`)).status).toBe(401);
  const jobs = await fetch(`${url}/ops/api/jobs`, { headers: { 'X-Staff': 'bea' } });
  // The order that was refused left no job.
  expect(await jobs.json()).toMatchObject({ jobs: [{ type: 'invoice.send', target_id: 'customer-ada' }] });
  expect((await fetch(`${url}/ops/`)).headers.get('content-type')).toContain('text/html');
  app.kill('SIGTERM');
  expect((await lines.next()).value).toBe('stopped');
  expect((await ended)[0]).toBe(0);
});

test('importing the package opens no connection and changes nothing in the process', async () => {
  const program = `
    const before = { env: JSON.stringify(process.env), listeners: process.eventNames().length };
    const { createLeasehold } = await import('leasehold/server');
    await import('leasehold');
    const leasehold = await createLeasehold({ databaseUrl: 'postgres://127.0.0.1:1/none' });
    console.log(JSON.stringify({
      env: JSON.stringify(process.env) === before.env,
      listeners: process.eventNames().length - before.listeners,
      handles: process.getActiveResourcesInfo().filter((name) => /TCP|Server|Timeout|Worker|Message|Signal/.test(name)),
      type: typeof leasehold.start,
    }));`;
  const { stdout, stderr } = await promisify(execFile)(process.execPath, ['--input-type=module', '-e', program], {
    cwd: root,
  });
  expect([stdout.trim(), stderr]).toEqual(['{"env":true,"listeners":0,"handles":[],"type":"function"}', '']);
});
