// The postmaster of a data directory: whether it runs, whether it answers, and how it is stopped. postmaster.pid alone
// is no proof that it runs: after a crash its pid may belong to another program, which must not be signalled.
import { execFile } from 'node:child_process';
import { readFile, readlink, realpath } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import pg from 'pg';
import { sqlState } from '../database/sql-errors.ts';

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
      // Not the file: it goes away before the process does.
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
