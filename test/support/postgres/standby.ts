// A hot standby of a test's own server, made from a copy of its files, that follows it and can be promoted.
import { execFile } from 'node:child_process';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { promisify } from 'node:util';
import pg from 'pg';
import { onTestFinished } from 'vitest';
import { clusterUrl, freePort } from '../../../server/embedded-postgres/cluster.ts';
import { eventually } from '../eventually.ts';
import { type CrashableServer, Postmaster } from './postmaster.ts';
import { keepLog } from './private-server.ts';

const run = promisify(execFile);

export interface Standby extends CrashableServer {
  promote(): Promise<void>;
}

interface StandbyOptions {
  /** The primary acknowledges no commit that the standby has not got, so a failover loses nothing. */
  synchronous?: boolean;
  /** By default a free one. */
  port?: number;
}

export async function startStandby(
  primary: CrashableServer,
  { synchronous = false, port: wanted }: StandbyOptions = {},
): Promise<Standby> {
  const { runner } = primary.place;
  const base = await mkdtemp(join(dirname(dirname(primary.place.directory)), 'leasehold-standby-'));
  await runner.own(base);
  const directory = join(base, 'data');
  await copyCluster(primary, directory, { 'standby.signal': '' });
  const port = wanted ?? (await freePort());
  const settings = [
    'listen_addresses=127.0.0.1',
    `unix_socket_directories=${base}`,
    'fsync=off',
    keepLog,
    `primary_conninfo=host=127.0.0.1 port=${primary.port} user=postgres password=test`,
  ];
  const copy = await startCopy(primary, { base, directory, port, settings });
  if (synchronous) await followSynchronously(primary);
  return { ...copy, promote: async () => void (await askOnce(copy.url, 'select pg_promote(true, 60)')) };
}

/** After the copy was made: a standby that is promoted waits for no other. */
async function followSynchronously({ url }: CrashableServer): Promise<void> {
  await askOnce(url, `alter system set synchronous_standby_names = '*'`);
  await askOnce(url, 'select pg_reload_conf()');
  await eventually(async () => {
    const [row] = (await askOnce(url, 'select sync_state from pg_stat_replication')) as { sync_state: string }[];
    if (row?.sync_state !== 'sync') throw new Error('the standby does not follow synchronously');
  });
}

/** Starts a server on copied files and waits until it answers; it is stopped and removed with the test. */
async function startCopy(
  primary: CrashableServer,
  { base, directory, port, settings }: { base: string; directory: string; port: number; settings: string[] },
): Promise<CrashableServer> {
  const place = { ...primary.place, directory };
  const postmaster = new Postmaster(place, { port, settings, logFile: join(base, 'log') });
  onTestFinished(async () => {
    await postmaster.halt();
    await rm(base, { recursive: true, force: true });
  });
  const url = clusterUrl(port, 'test');
  const answers = () =>
    eventually(() => askOnce(url, 'select 1'), { timeoutMs: 60_000, everyMs: 100 }).catch(async (cause) => {
      throw new Error(`the copy does not start:\n${await readFile(join(base, 'log'), 'utf8')}`, { cause });
    });
  const restart = async () => {
    postmaster.start();
    await answers();
  };
  await answers();
  return { url, port, place, halt: () => postmaster.halt(), restart };
}

/** A separate server on a backup that was made while the primary was working. */
export async function restoreBackup(primary: CrashableServer): Promise<{ url: string }> {
  const { runner } = primary.place;
  const base = await mkdtemp(join(dirname(dirname(primary.place.directory)), 'leasehold-restored-'));
  await runner.own(base);
  const directory = join(base, 'data');
  await copyCluster(primary, directory);
  const port = await freePort();
  const settings = ['listen_addresses=127.0.0.1', `unix_socket_directories=${base}`, 'fsync=off'];
  return startCopy(primary, { base, directory, port, settings });
}

/** One session starts and ends the backup: it is over when its connection is. */
async function copyCluster(
  primary: CrashableServer,
  directory: string,
  signals: Record<string, string> = {},
): Promise<void> {
  const client = new pg.Client(primary.url);
  await client.connect();
  try {
    await client.query(`select pg_backup_start('test', true)`);
    await copyFiles(primary.place.directory, directory);
    const { rows } = await client.query<{ labelfile: string }>('select labelfile from pg_backup_stop(false)');
    await rm(join(directory, 'postmaster.pid'), { force: true });
    // The log up to the end of the backup: without it the copy is not consistent.
    await copyFiles(`${primary.place.directory}/pg_wal/.`, join(directory, 'pg_wal'));
    for (const [name, text] of Object.entries({ backup_label: rows[0]?.labelfile ?? '', ...signals })) {
      await writeFile(join(directory, name), text);
      await primary.place.runner.own(join(directory, name));
    }
  } finally {
    await client.end();
  }
}

/** A working server removes files. The log restores those that it needs. */
async function copyFiles(from: string, to: string): Promise<void> {
  await run('cp', ['-a', from, to]).catch((error: { stderr?: string }) => {
    const lines = (error.stderr ?? '').split('\n').filter((line) => line !== '');
    if (lines.length === 0 || !lines.every((line) => line.includes('No such file or directory'))) throw error;
  });
}

async function askOnce(url: string, text: string): Promise<unknown[]> {
  const client = new pg.Client(url);
  client.on('error', () => {});
  try {
    await client.connect();
    return (await client.query(text)).rows;
  } finally {
    await client.end();
  }
}
