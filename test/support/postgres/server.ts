// The database server of a test run: TEST_DATABASE_URL, a container, or the embedded Postgres.
import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { request } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import pg from 'pg';
import { findBinaries, findRunner } from '../../../server/embedded-postgres/binaries.ts';
import {
  clusterUrl,
  freePort,
  initCluster,
  postmasterPid,
  spawnPostmaster,
} from '../../../server/embedded-postgres/cluster.ts';
import { isAlive } from '../../../server/embedded-postgres/cluster-directory.ts';
import { eventually } from '../eventually.ts';
import { citusCluster } from './citus.ts';

export interface TestServer {
  /** A URL of a role that may create databases. */
  url: string;
  stop(): Promise<void>;
}

export async function startServer(): Promise<TestServer> {
  const given = citusCluster()?.coordinator ?? process.env.TEST_DATABASE_URL;
  if (given) return { url: given, stop: async () => {} };
  if (await dockerAnswers()) {
    const container = await startContainer().catch(() => undefined);
    if (container) return container;
  }
  return startEmbedded();
}

/** An engine that answers a ping within a second; a socket file alone proves nothing. */
async function dockerAnswers(): Promise<boolean> {
  const host = process.env.DOCKER_HOST ?? 'unix:///var/run/docker.sock';
  const url = new URL(host);
  if (url.protocol === 'ssh:' || url.protocol === 'npipe:') return false;
  const address = url.protocol === 'unix:' ? { socketPath: url.pathname } : { host: url.hostname, port: url.port };
  return new Promise((resolve) => {
    const ping = request({ ...address, path: '/_ping', timeout: 1_000 }, (answer) => {
      answer.resume();
      resolve(answer.statusCode === 200);
    });
    ping.on('timeout', () => ping.destroy());
    ping.on('error', () => resolve(false));
    ping.end();
  });
}

async function startContainer(): Promise<TestServer> {
  const { PostgreSqlContainer } = await import('@testcontainers/postgresql');
  const container = await new PostgreSqlContainer('postgres:18-alpine')
    .withCommand(['postgres', ...fast.flatMap((setting) => ['-c', setting])])
    .start();
  return { url: container.getConnectionUri(), stop: async () => void (await container.stop()) };
}

// A test's data need not survive a power cut.
const fast = ['fsync=off', 'synchronous_commit=off', 'full_page_writes=off', 'max_connections=300'];
const prefix = 'leasehold-test-';

async function startEmbedded(): Promise<TestServer> {
  await reapOrphans();
  const runner = await findRunner();
  // Postgres runs as another user when we are root: /tmp is open to it, TMPDIR may not be.
  const base = await mkdtemp(join(runner.ids.uid === undefined ? tmpdir() : '/tmp', prefix));
  await writeFile(join(base, 'owner'), String(process.pid));
  await runner.own(base);
  const place = { binaries: await findBinaries(runner), runner, directory: join(base, 'data') };
  const password = 'test';
  await initCluster(place, password, ['--no-sync']);
  const port = await freePort();
  const settings = [...fast, 'listen_addresses=127.0.0.1', `unix_socket_directories=${base}`];
  const postmaster = spawnPostmaster(place, { port, settings, logFile: join(base, 'log') });
  const exited = new Promise((resolve) => postmaster.once('exit', resolve));
  const url = clusterUrl(port, password);
  await eventually(() => connectOnce(url), { timeoutMs: 60_000, everyMs: 50 });
  return {
    url,
    stop: async () => {
      postmaster.kill('SIGQUIT');
      await exited;
      await rm(base, { recursive: true, force: true });
    },
  };
}

async function connectOnce(url: string): Promise<void> {
  const client = new pg.Client(url);
  client.on('error', () => {});
  try {
    await client.connect();
  } finally {
    await client.end();
  }
}

/** Servers of test runs that were killed: only those whose directory names a dead owner. */
async function reapOrphans(): Promise<void> {
  for (const parent of new Set([tmpdir(), '/tmp'])) {
    for (const name of await readdir(parent).catch(() => [])) {
      if (!name.startsWith(prefix)) continue;
      const base = join(parent, name);
      const owner = Number(await readFile(join(base, 'owner'), 'utf8').catch(() => 'NaN'));
      if (!(owner > 0) || isAlive(owner)) continue;
      const pid = await postmasterPid(join(base, 'data'));
      if (pid !== undefined) process.kill(pid, 'SIGQUIT');
      await eventually(async () => {
        if ((await postmasterPid(join(base, 'data'))) !== undefined) throw new Error(`postgres ${pid} does not stop`);
      });
      await rm(base, { recursive: true, force: true });
    }
  }
}
