// The Postgres of `npm start`: a real one from npm, its data in DATA_DIR, durable, on loopback only.
// Never two postmasters on one directory: a live one is adopted, an unresponsive one stopped first.
import { mkdir, readFile, rename, rm, stat } from 'node:fs/promises';
import { join, resolve } from 'node:path';
import { Interval } from '../kernel/interval.ts';
import type { Logger } from '../kernel/logger.ts';
import { type ClusterDirectory, clusterUrl, freePort, lastLines, spawnPostmaster } from './cluster.ts';
import { prepareClusterDirectory } from './cluster-directory.ts';
import { type Credentials, credentialsFile, readCredentials, writeCredentials } from './credentials.ts';
import { lockData } from './data-lock.ts';
import { EmbeddedPostgresError, explainFileError } from './embedded-postgres-error.ts';
import { postmasterPid, stopPostmaster } from './postmaster.ts';
import { answers, createDatabase } from './probe.ts';

export interface EmbeddedPostgres {
  url: string;
  /** Idempotent; resolves when no postgres process is left. */
  stop(): Promise<void>;
}

export interface EmbeddedPostgresOptions {
  dataDir: string;
  logger: Logger;
}

export const embeddedDatabaseName = 'leasehold';
const settings = [
  'listen_addresses=127.0.0.1',
  // No socket file: its directory may be missing or closed to the user that Postgres runs as.
  'unix_socket_directories=',
  'max_connections=200',
];
// Recovery after a crash replays at most a checkpoint or two; what takes longer is stuck.
const startMs = 120_000;
const adoptMs = 8_000;
const watchMs = 2_000;
const maxLogBytes = 10 * 1024 ** 2;

export async function startEmbeddedPostgres({ dataDir, logger }: EmbeddedPostgresOptions): Promise<EmbeddedPostgres> {
  const directory = resolve(dataDir);
  const letSignalsThrough = exitOnSignals();
  try {
    await mkdir(directory, { recursive: true });
    const lock = await lockData(directory);
    try {
      const credentials = await readCredentials(directory);
      const place = await prepareClusterDirectory(directory, credentials.password);
      const postgres = new SupervisedPostgres(directory, place, credentials, logger);
      await postgres.start();
      return { url: postgres.urlOf(embeddedDatabaseName), stop: () => postgres.stop().finally(() => lock.release()) };
    } catch (error) {
      await lock.release();
      throw error;
    }
  } catch (error) {
    throw explainFileError(error, directory);
  } finally {
    letSignalsThrough();
  }
}

// Until the daemon listens to signals itself, Ctrl-C would end us without the exit that takes Postgres along.
function exitOnSignals(): () => void {
  const signals = (['SIGINT', 'SIGTERM', 'SIGHUP'] as const).filter((signal) => process.listenerCount(signal) === 0);
  const exit = () => process.exit(130);
  for (const signal of signals) process.on(signal, exit);
  return () => {
    for (const signal of signals) process.removeListener(signal, exit);
  };
}

class SupervisedPostgres {
  #dataDir: string;
  #place: ClusterDirectory;
  #credentials: Credentials;
  #logger: Logger;
  #logFile: string;
  #watch: Interval;
  #pid: number | undefined;
  #stopping: Promise<void> | undefined;

  constructor(dataDir: string, place: ClusterDirectory, credentials: Credentials, logger: Logger) {
    this.#dataDir = dataDir;
    this.#place = place;
    this.#credentials = credentials;
    this.#logger = logger;
    this.#logFile = join(dataDir, 'postgres.log');
    this.#watch = new Interval('embedded-postgres', watchMs, () => this.#restartIfGone(), logger);
  }

  urlOf(database: string): string {
    return clusterUrl(this.#credentials.port, this.#credentials.password, database);
  }

  async start(): Promise<void> {
    process.once('exit', this.#interrupt);
    try {
      this.#pid = (await this.#adopt()) ?? (await this.#launch({ mayMove: true }));
      await createDatabase(this.urlOf('postgres'), embeddedDatabaseName);
      await this.#watch.start();
    } catch (error) {
      await this.stop();
      throw error;
    }
  }

  stop(): Promise<void> {
    this.#stopping ??= this.#stop();
    return this.#stopping;
  }

  async #stop(): Promise<void> {
    await this.#watch.stop();
    await stopPostmaster(this.#place.directory);
    this.#pid = undefined;
    process.removeListener('exit', this.#interrupt);
  }

  // A daemon that crashes takes its database along: nothing stays behind unseen.
  #interrupt = (): void => {
    try {
      if (this.#pid !== undefined) process.kill(this.#pid, 'SIGINT');
    } catch {
      // Gone already.
    }
  };

  /** The postmaster that a killed daemon left behind, if it answers; one that does not is stopped. */
  async #adopt(): Promise<number | undefined> {
    const pid = await postmasterPid(this.#place.directory);
    if (pid === undefined) return undefined;
    const gone = async () => (await postmasterPid(this.#place.directory)) !== pid;
    if ((await answers(this.urlOf('postgres'), gone, adoptMs)) === 'yes') {
      this.#logger.warn({ pid }, 'took over the postgres of a daemon that was killed');
      return pid;
    }
    this.#logger.warn({ pid }, 'stopping a postgres that does not answer');
    await stopPostmaster(this.#place.directory);
    return undefined;
  }

  /** Starts a postmaster. Waits for a dying predecessor; may move to another port if ours is taken. */
  async #launch({ mayMove }: { mayMove: boolean }): Promise<number> {
    for (let attempt = 1; ; attempt++) {
      const begin = await rotateLog(this.#logFile);
      // No postmaster runs here (we have looked): what the file names is dead or somebody else.
      await rm(join(this.#place.directory, 'postmaster.pid'), { force: true });
      const { port } = this.#credentials;
      const child = await spawnPostmaster(this.#place, { port, settings, logFile: this.#logFile });
      child.unref();
      this.#pid = child.pid;
      const gone = async () => child.exitCode !== null || child.signalCode !== null;
      const answer = await answers(this.urlOf('postgres'), gone, startMs);
      if (answer === 'yes' && child.pid !== undefined) return child.pid;
      if (!(await gone())) await stopPostmaster(this.#place.directory);
      this.#pid = undefined;
      const said = (await readFile(this.#logFile)).subarray(begin).toString();
      if (answer === 'denied') throw denied(this.#dataDir);
      if (attempt >= 5 || !mayPass(said)) throw explainStart(said, this.#logFile);
      if (mayMove && portTaken(said)) await this.#move();
      await new Promise((wake) => setTimeout(wake, 300 * attempt));
    }
  }

  async #move(): Promise<void> {
    this.#credentials = { ...this.#credentials, port: await freePort() };
    await writeCredentials(this.#dataDir, this.#credentials);
  }

  async #restartIfGone(): Promise<void> {
    if ((await postmasterPid(this.#place.directory)) !== undefined) return;
    this.#logger.error({ log: this.#logFile }, 'postgres has gone away, starting it again');
    this.#pid = undefined;
    // The daemon's connections know this port.
    this.#pid = await this.#launch({ mayMove: false });
  }
}

/** Puts a large log aside; returns where the next line will be written. */
async function rotateLog(file: string): Promise<number> {
  const size = (await stat(file).catch(() => undefined))?.size ?? 0;
  if (size <= maxLogBytes) return size;
  await rename(file, `${file}.1`);
  return 0;
}

function portTaken(said: string): boolean {
  return /Address already in use|could not bind/i.test(said);
}

function mayPass(said: string): boolean {
  return portTaken(said) || /shared memory block .* still in use/i.test(said);
}

function denied(dataDir: string): EmbeddedPostgresError {
  return new EmbeddedPostgresError(
    `the database in ${dataDir} does not accept the password in ${credentialsFile(dataDir)}; put the old file back`,
  );
}

function explainStart(said: string, logFile: string): EmbeddedPostgresError {
  if (/No space left on device/i.test(said)) {
    return new EmbeddedPostgresError(
      'postgres did not start: no room is left on its disk; free some or set DATA_DIR elsewhere',
    );
  }
  return new EmbeddedPostgresError(`postgres did not start; its last words in ${logFile}:\n${lastLines(said)}`);
}
