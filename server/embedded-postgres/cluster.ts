// Makes, starts and stops one Postgres cluster as a child process. Decides nothing about locks,
// versions or adoption: embedded-postgres.ts does.
import { type ChildProcess, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { open, rm, writeFile } from 'node:fs/promises';
import { createServer } from 'node:net';
import type { PostgresBinaries } from './binaries.ts';
import { EmbeddedPostgresError } from './embedded-postgres-error.ts';
import type { Runner } from './system-user.ts';

export const clusterUser = 'postgres';

export interface ClusterDirectory {
  binaries: PostgresBinaries;
  runner: Runner;
  /** The data directory, reachable for the runner. */
  directory: string;
}

/** initdb into an empty or missing directory. */
export async function initCluster(place: ClusterDirectory, password: string, flags: string[] = []): Promise<void> {
  // Beside the data, which the other user can reach; the temporary directory may be closed to it.
  const passwordFile = `${place.directory}.password-${randomBytes(8).toString('hex')}`;
  await writeFile(passwordFile, `${password}\n`, { mode: 0o600 });
  try {
    await place.runner.own(passwordFile);
    const child = spawn(
      place.binaries.initdb,
      [
        `--pgdata=${place.directory}`,
        '--auth=scram-sha-256',
        `--username=${clusterUser}`,
        `--pwfile=${passwordFile}`,
        '--encoding=UTF8',
        '--locale=C',
        ...flags,
      ],
      { ...place.runner.ids, cwd: '/', stdio: ['ignore', 'pipe', 'pipe'] },
    );
    const { code, output } = await finished(child);
    if (code !== 0) throw new EmbeddedPostgresError(`initdb failed: ${lastLines(output)}`);
  } finally {
    await rm(passwordFile, { force: true });
  }
}

export interface StartOptions {
  port: number;
  /** `name=value` settings. */
  settings: string[];
  logFile: string;
}

/**
 * Starts the postmaster; the caller waits until it answers. In a process group of its own, or
 * Ctrl-C in a terminal would stop the database before the daemon has drained.
 */
export async function spawnPostmaster(place: ClusterDirectory, options: StartOptions): Promise<ChildProcess> {
  const log = await open(options.logFile, 'a', 0o600);
  try {
    const child = spawn(
      place.binaries.postgres,
      ['-D', place.directory, '-p', String(options.port), ...options.settings.flatMap((setting) => ['-c', setting])],
      { ...place.runner.ids, cwd: '/', detached: true, stdio: ['ignore', log.fd, log.fd] },
    );
    await new Promise<void>((resolve, reject) => {
      child.once('spawn', resolve);
      child.once('error', (error) => reject(new EmbeddedPostgresError(`postgres cannot be started: ${error.message}`)));
    });
    return child;
  } finally {
    await log.close();
  }
}

/** A port that is free now on the loopback address. */
export async function freePort(): Promise<number> {
  return new Promise((resolve, reject) => {
    const server = createServer();
    server.once('error', reject);
    server.listen(0, '127.0.0.1', () => {
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

async function finished(child: ChildProcess): Promise<{ code: number | null; output: string }> {
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
