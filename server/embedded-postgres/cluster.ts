// One Postgres cluster: initdb, the postmaster as a child process, and its port and password. start.ts decides about
// locks, versions and adoption.
import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { randomBytes, randomInt } from 'node:crypto';
import { closeSync, openSync } from 'node:fs';
import { chmod, readFile, readlink, realpath, rename, rm, writeFile } from 'node:fs/promises';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { promisify } from 'node:util';
import pg from 'pg';
import { sqlState } from '../database/sql-errors.ts';
import type { PostgresBinaries, Runner } from './binaries.ts';
import { EmbeddedPostgresError } from './embedded-postgres-error.ts';

const clusterUser = 'postgres';

export interface ClusterDirectory {
  binaries: PostgresBinaries;
  runner: Runner;
  /** The data directory, reachable for the runner. */
  directory: string;
}

/** initdb into an empty or missing directory. */
export async function initCluster(cluster: ClusterDirectory, password: string, flags: string[] = []): Promise<void> {
  // Next to the data, because the user that runs initdb may be unable to enter the temporary directory.
  const passwordFile = `${cluster.directory}.password-${randomBytes(8).toString('hex')}`;
  await writeFile(passwordFile, `${password}\n`, { mode: 0o600 });
  try {
    await cluster.runner.own(passwordFile);
    const child = spawn(
      cluster.binaries.initdb,
      [
        `--pgdata=${cluster.directory}`,
        '--auth=scram-sha-256',
        `--username=${clusterUser}`,
        `--pwfile=${passwordFile}`,
        '--encoding=UTF8',
        '--locale=C',
        ...flags,
      ],
      { ...cluster.runner.ids, cwd: '/', stdio: ['ignore', 'pipe', 'pipe'] },
    );
    const { code, output } = await waitForExit(child);
    if (code !== 0) throw new EmbeddedPostgresError(`initdb failed: ${lastLines(output)}`);
  } finally {
    await rm(passwordFile, { force: true });
  }
}

interface StartOptions {
  port: number;
  /** `name=value` settings. */
  settings: string[];
  logFile: string;
}

/**
 * Starts the postmaster; the caller waits until it answers. Synchronous, so that an interrupted caller knows its pid.
 * It runs in its own process group, because Ctrl-C in a terminal would otherwise stop the database before the daemon
 * has drained.
 */
export function spawnPostmaster(cluster: ClusterDirectory, options: StartOptions): ChildProcess {
  const log = openSync(options.logFile, 'a', 0o600);
  try {
    return spawn(
      cluster.binaries.postgres,
      ['-D', cluster.directory, '-p', String(options.port), ...options.settings.flatMap((setting) => ['-c', setting])],
      { ...cluster.runner.ids, cwd: '/', detached: true, stdio: ['ignore', log, log] },
    );
  } finally {
    closeSync(log);
  }
}

export function spawned(postmaster: ChildProcess): Promise<void> {
  return new Promise((resolve, reject) => {
    postmaster.once('spawn', resolve);
    postmaster.once('error', (error) =>
      reject(new EmbeddedPostgresError(`postgres cannot be started: ${error.message}`)),
    );
  });
}

/** Stored next to the data, readable only for its owner. */
export interface Credentials {
  port: number;
  password: string;
}

export const credentialsFile = (dataDir: string): string => join(dataDir, 'postgres.json');

/** The credentials of the last start, or new ones. */
export async function readCredentials(dataDir: string): Promise<Credentials> {
  const text = await readFile(credentialsFile(dataDir), 'utf8').catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return undefined;
    throw error;
  });
  if (text === undefined) {
    const credentials = { port: await freePort(), password: randomBytes(24).toString('base64url') };
    await writeCredentials(dataDir, credentials);
    return credentials;
  }
  try {
    const found = JSON.parse(text) as Credentials;
    if (typeof found.password === 'string' && Number.isInteger(found.port)) return found;
  } catch {
    // Not JSON: reported below.
  }
  throw new EmbeddedPostgresError(
    `${credentialsFile(dataDir)} should hold the database's port and password, and does not`,
  );
}

export async function writeCredentials(dataDir: string, credentials: Credentials): Promise<void> {
  const file = credentialsFile(dataDir);
  await writeFile(`${file}.new`, `${JSON.stringify(credentials)}\n`, { mode: 0o600 });
  // The mode above applies only to a file that did not exist.
  await chmod(`${file}.new`, 0o600);
  await rename(`${file}.new`, file);
}

// Below the ports that systems assign to outgoing connections (from 32768 on Linux, from 49152 elsewhere), which any
// program may take before the port is used here, or between two starts.
const portRange = { first: 15_000, count: 15_000 };
const maxPortTries = 50;

/** Returns a port that is free now on the loopback address. */
export async function freePort(): Promise<number> {
  for (let tries = 0; tries < maxPortTries; tries++) {
    const port = portRange.first + randomInt(portRange.count);
    const isFree = await tryPort(port).catch(() => undefined);
    if (isFree !== undefined) return port;
  }
  // If the system reserves all of them or none is free, any port is used.
  return tryPort(0);
}

async function tryPort(port: number): Promise<number> {
  return new Promise((resolve, reject) => {
    const server = createServer();
    server.once('error', reject);
    server.listen(port, '127.0.0.1', () => {
      const address = server.address();
      server.close(() =>
        address && typeof address === 'object' ? resolve(address.port) : reject(new Error('no port')),
      );
    });
  });
}

export function clusterUrl(port: number, password: string, database = 'postgres'): string {
  return `postgres://${clusterUser}:${encodeURIComponent(password)}@127.0.0.1:${port}/${database}`;
}

async function waitForExit(child: ChildProcess): Promise<{ code: number | null; output: string }> {
  let output = '';
  for (const stream of [child.stdout, child.stderr])
    stream?.on('data', (chunk: Buffer) => (output += chunk.toString()));
  return new Promise((resolve, reject) => {
    child.once('error', reject);
    child.once('close', (code) => resolve({ code, output }));
  });
}

export function lastLines(text: string, count = 5): string {
  return text.trim().split('\n').slice(-count).join('\n');
}

// The postmaster of a data directory: whether it runs and answers, and how it is stopped. postmaster.pid does not prove
// that it runs: after a crash the pid may belong to another program, which must not be signalled.

/** The pid of the live postmaster of this data directory, if there is one. */
export async function postmasterPid(directory: string): Promise<number | undefined> {
  const text = await readFile(join(directory, 'postmaster.pid'), 'utf8').catch(() => '');
  const pid = Number(text.split('\n')[0]);
  if (!Number.isInteger(pid) || pid <= 0) return undefined;
  return (await isPostmasterOf(pid, directory)) ? pid : undefined;
}

async function isPostmasterOf(pid: number, directory: string): Promise<boolean> {
  const real = await realpath(directory).catch(() => directory);
  if (process.platform !== 'linux') return (await commandLine(pid)).some((word) => word === directory || word === real);
  const command = await readFile(`/proc/${pid}/cmdline`, 'utf8').catch(() => '');
  if (!/postgres/.test(command)) return false;
  // A postmaster works inside its data directory. A zombie has neither a directory nor a command.
  const cwd = await readlink(`/proc/${pid}/cwd`).catch(() => undefined);
  return cwd === undefined ? command.split('\0').some((word) => word === directory || word === real) : cwd === real;
}

async function commandLine(pid: number): Promise<string[]> {
  const run = promisify(execFile);
  const { stdout } = await run('ps', ['-o', 'command=', '-p', String(pid)]).catch(() => ({ stdout: '' }));
  return stdout.trim().split(/\s+/);
}

// Fast shutdown ends sessions and checkpoints; immediate leaves the rest to recovery; then force.
const escalation = [
  ['SIGINT', 60_000],
  ['SIGQUIT', 10_000],
  ['SIGKILL', 10_000],
] as const;

/** Stops the postmaster of a data directory, if one runs; resolves when it is gone. */
export async function stopPostmaster(directory: string): Promise<void> {
  for (const [signal, waitMs] of escalation) {
    const pid = await postmasterPid(directory);
    if (pid === undefined) return;
    process.kill(pid, signal);
    const deadline = performance.now() + waitMs;
    while (performance.now() < deadline) {
      // Not the file, which is removed before the process exits.
      if (!(await isPostmasterOf(pid, directory))) return;
      await new Promise((resolve) => setTimeout(resolve, 25));
    }
  }
  throw new Error(`the postgres on ${directory} cannot be stopped`);
}

type Answer = 'yes' | 'no' | 'denied';

/** Polls a server that may be starting, recovering or stuck until it answers, is gone, or the time is over. */
export async function waitForAnswer(url: string, gone: () => Promise<boolean>, withinMs: number): Promise<Answer> {
  const deadline = performance.now() + withinMs;
  while (performance.now() < deadline && !(await gone())) {
    const answer = await probe(url);
    if (answer !== 'no') return (await gone()) ? 'no' : answer;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  return 'no';
}

async function probe(url: string): Promise<Answer> {
  const client = new pg.Client({ connectionString: url, connectionTimeoutMillis: 5_000, query_timeout: 5_000 });
  client.on('error', () => {});
  try {
    await client.connect();
    await client.query('select 1');
    return 'yes';
  } catch (error) {
    return sqlState(error)?.startsWith('28') ? 'denied' : 'no';
  } finally {
    await client.end().catch(() => {});
  }
}

/** Creates the database unless it exists. */
export async function createDatabase(url: string, name: string): Promise<void> {
  const client = new pg.Client({ connectionString: url });
  client.on('error', () => {});
  try {
    await client.connect();
    await client.query(`create database ${name}`);
  } catch (error) {
    const exists = sqlState(error) === '42P04';
    if (!exists) throw error;
  } finally {
    await client.end();
  }
}
