// The servers of the REST workloads, each in a process of its own: a daemon with its defaults, and the bare routes.
import { fork, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { createServer } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import pg from 'pg';

const pathOf = (relative) => fileURLToPath(new URL(relative, import.meta.url));

/** A daemon also works for the tenants of earlier measurements: without them. */
export async function emptyDatabase(databaseUrl) {
  const client = new pg.Client(databaseUrl);
  await client.connect();
  const { rows } = await client.query(
    `select nspname from pg_namespace where nspname = 'leasehold' or nspname like 'tenant\\_%'`,
  );
  for (const { nspname } of rows) await client.query(`drop schema "${nspname}" cascade`);
  await client.end();
}

/**
 * `key` is that of a new tenant; `settings` are those of the tenant, `env` further settings of the daemon. With `isReady`
 * the daemon is not asked whether it is ready, and no tenant is created.
 */
export async function startDaemon(databaseUrl, { env = {}, settings, isReady } = {}) {
  const port = await freePort();
  const adminKey = randomBytes(24).toString('hex');
  const nodeArguments = process.env.BENCH_NODE_ARGS?.split(' ') ?? [];
  const child = spawn(process.execPath, [...nodeArguments, pathOf('../../../dist/main.js')], {
    env: {
      PATH: process.env.PATH,
      PORT: String(port),
      DATABASE_URL: databaseUrl,
      ADMIN_API_KEY: adminKey,
      DEMO_TENANT: 'never',
      LOG_LEVEL: 'fatal',
      ...env,
    },
    stdio: 'inherit',
  });
  const url = `http://127.0.0.1:${port}`;
  for (let tries = 0; !(await (isReady ?? answersReady)(url)); tries++) {
    if (tries > 3000 || child.exitCode !== null) throw new Error('the daemon did not start');
    await sleep(10);
  }
  const stop = () => stopped(child);
  if (isReady !== undefined) return { url, pid: child.pid, stop };
  const slug = `bench_${randomBytes(4).toString('hex')}`;
  const response = await fetch(`${url}/api/admin/tenants`, {
    method: 'POST',
    headers: { authorization: `Bearer ${adminKey}`, 'content-type': 'application/json' },
    body: JSON.stringify({ slug, settings }),
  });
  if (!response.ok) throw new Error(await response.text());
  const { key } = await response.json();
  return { url, pid: child.pid, key: key.key, schema: `tenant_${slug}`, stop };
}

export async function startBareRoutes(databaseUrl) {
  const client = new pg.Client(databaseUrl);
  await client.connect();
  await client.query(`
    drop schema if exists bare cascade;
    create schema bare;
    create table bare.rows (id uuid primary key default gen_random_uuid(), type text not null, payload jsonb not null,
      run_at timestamptz, created_at timestamptz not null default now())`);
  await client.end();
  const child = fork(pathOf('./bare-routes.mjs'), { env: { ...process.env, BENCH_URL: databaseUrl } });
  const url = await new Promise((resolve, reject) => {
    child.once('message', resolve);
    child.once('exit', (code) => reject(new Error(`the bare routes exited with ${code}`)));
  });
  return { url, pid: child.pid, stop: () => stopped(child) };
}

async function stopped(child) {
  const ended = new Promise((resolve) => child.once('exit', resolve));
  child.kill('SIGTERM');
  await ended;
}

async function answersReady(url) {
  return fetch(`${url}/readyz`).then(
    (response) => response.ok,
    () => false,
  );
}

function freePort() {
  return new Promise((resolve) => {
    const server = createServer().listen(0, '127.0.0.1', () => {
      const { port } = server.address();
      server.close(() => resolve(port));
    });
  });
}
