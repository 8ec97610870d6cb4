// A hot standby of a test's own server, made from a copy of its files, that follows it and can be promoted.
import { execFile } from 'node:child_process';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { promisify } from 'node:util';
import pg from 'pg';
import { onTestFinished } from 'vitest';
import { clusterUrl, freePort, spawnPostmaster } from '../../../server/embedded-postgres/cluster.ts';
import { eventually } from '../eventually.ts';
import type { PrivateServer } from './private-server.ts';

const run = promisify(execFile);

export interface Standby {
  url: string;
  port: number;
  promote(): Promise<void>;
}

/** `synchronous`: the primary acknowledges no commit that the standby has not got, so a failover loses nothing. */
export async function startStandby(
  primary: PrivateServer,
  { synchronous = false }: { synchronous?: boolean } = {},
): Promise<Standby> {
  const { runner } = primary.place;
  const base = await mkdtemp(join(dirname(dirname(primary.place.directory)), 'leasehold-standby-'));
  await runner.own(base);
  const directory = join(base, 'data');
  await copyCluster(primary, directory, { 'standby.signal': '' });
  const port = await freePort();
  const settings = [
    'listen_addresses=127.0.0.1',
    `unix_socket_directories=${base}`,
    'fsync=off',
    `primary_conninfo=host=127.0.0.1 port=${primary.port} user=postgres password=test`,
  ];
  const url = await startCopy(primary, { base, directory, port, settings });
  const ask = (text: string) => askOnce(url, text);
  if (synchronous) await followSynchronously(primary);
  return { url, port, promote: async () => void (await ask('select pg_promote(true, 60)')) };
}

async function followSynchronously({ db }: PrivateServer): Promise<void> {
  await db.query(`alter system set synchronous_standby_names = '*'`);
  await db.query('select pg_reload_conf()');
  await eventually(async () => {
    const [row] = await db.query<{ sync_state: string }>('select sync_state from pg_stat_replication');
    if (row?.sync_state !== 'sync') throw new Error('the standby does not follow synchronously');
  });
}

/** Starts a server on copied files and waits until it answers; it is stopped and removed with the test. */
async function startCopy(
  primary: PrivateServer,
  { base, directory, port, settings }: { base: string; directory: string; port: number; settings: string[] },
): Promise<string> {
  const postmaster = spawnPostmaster({ ...primary.place, directory }, { port, settings, logFile: join(base, 'log') });
  const exited = new Promise((resolve) => postmaster.once('exit', resolve));
  onTestFinished(async () => {
    postmaster.kill('SIGQUIT');
    await exited;
    await rm(base, { recursive: true, force: true });
  });
  const url = clusterUrl(port, 'test');
  await eventually(() => askOnce(url, 'select 1'), { timeoutMs: 60_000, everyMs: 100 }).catch(async (cause) => {
    throw new Error(`the copy does not start:\n${await readFile(join(base, 'log'), 'utf8')}`, { cause });
  });
  return url;
}

/** A server of its own on a backup that was made while the primary worked. */
export async function restoreBackup(primary: PrivateServer): Promise<{ url: string }> {
  const { runner } = primary.place;
  const base = await mkdtemp(join(dirname(dirname(primary.place.directory)), 'leasehold-restored-'));
  await runner.own(base);
  const directory = join(base, 'data');
  await copyCluster(primary, directory);
  const port = await freePort();
  const settings = ['listen_addresses=127.0.0.1', `unix_socket_directories=${base}`, 'fsync=off'];
  return { url: await startCopy(primary, { base, directory, port, settings }) };
}

/** One session starts and ends the backup: it is over when its connection is. */
async function copyCluster(
  primary: PrivateServer,
  directory: string,
  signals: Record<string, string> = {},
): Promise<void> {
  const client = new pg.Client(primary.url);
  await client.connect();
  try {
    await client.query(`select pg_backup_start('test', true)`);
    await run('cp', ['-a', primary.place.directory, directory]);
    const { rows } = await client.query<{ labelfile: string }>('select labelfile from pg_backup_stop(false)');
    await rm(join(directory, 'postmaster.pid'), { force: true });
    // The log up to the end of the backup: without it the copy is not consistent.
    await run('cp', ['-a', `${primary.place.directory}/pg_wal/.`, join(directory, 'pg_wal')]);
    for (const [name, text] of Object.entries({ backup_label: rows[0]?.labelfile ?? '', ...signals })) {
      await writeFile(join(directory, name), text);
      await primary.place.runner.own(join(directory, name));
    }
  } finally {
    await client.end();
  }
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
