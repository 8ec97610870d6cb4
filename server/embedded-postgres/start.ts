// The Postgres of `npm start`: installed by npm, with durable data in DATA_DIR, on loopback only. Two postmasters never
// run on one directory: one that answers is adopted, and one that does not is stopped first.
import { mkdir, readFile, rename, rm, stat } from 'node:fs/promises';
import { join, resolve } from 'node:path';
import type { Logger } from '../kernel/logger.ts';
import { Interval } from '../kernel/service.ts';
import {
  type ClusterDirectory,
  type Credentials,
  clusterUrl,
  createDatabase,
  credentialsFile,
  freePort,
  lastLines,
  postmasterPid,
  readCredentials,
  spawned,
  spawnPostmaster,
  stopPostmaster,
  waitForAnswer,
  writeCredentials,
} from './cluster.ts';
import { lockData, prepareClusterDirectory } from './cluster-directory.ts';
import { EmbeddedPostgresError, explainFileError } from './embedded-postgres-error.ts';

export interface EmbeddedPostgres {
  url: string;
  /** Idempotent; resolves when no postgres process is left. */
  stop(): Promise<void>;
}

export interface EmbeddedPostgresOptions {
  dataDir: string;
  logger: Logger;
}

const databaseName = 'leasehold';
const settings = [
  'listen_addresses=127.0.0.1',
  // No socket file: its directory may be missing or closed to the user that Postgres runs as.
  'unix_socket_directories=',
  'max_connections=200',
];
// Recovery after a crash replays at most a checkpoint or two; a start that takes longer is stuck.
const startMs = 120_000;
const adoptMs = 8_000;
const checkEveryMs = 2_000;
const maxLogBytes = 10 * 1024 ** 2;

export async function startEmbeddedPostgres({ dataDir, logger }: EmbeddedPostgresOptions): Promise<EmbeddedPostgres> {
  const directory = resolve(dataDir);
  const removeHandlers = exitOnSignals();
  try {
    await mkdir(directory, { recursive: true });
    const lock = await lockData(directory);
    try {
      const credentials = await readCredentials(directory);
      const onCreate = () => logger.info({ directory }, 'creating a database (only at the first start)');
      const cluster = await prepareClusterDirectory(directory, credentials.password, onCreate);
      const postgres = new SupervisedPostgres(directory, cluster, credentials, logger);
      await postgres.start();
      return { url: postgres.urlOf(databaseName), stop: () => postgres.stop().finally(() => lock.release()) };
    } catch (error) {
      await lock.release();
      throw error;
    }
  } catch (error) {
    throw explainFileError(error, directory);
  } finally {
    removeHandlers();
  }
}

/** True if this DATA_DIR has a Postgres, running or not. */
export async function hasCluster(dataDir: string): Promise<boolean> {
  return (await stat(join(resolve(dataDir), 'postgres')).catch(() => undefined)) !== undefined;
}

/** The URL of the Postgres that a daemon runs on this DATA_DIR, for other programs; undefined if none runs. */
export async function findRunningPostgres(dataDir: string): Promise<string | undefined> {
  const directory = resolve(dataDir);
  if ((await postmasterPid(join(directory, 'postgres'))) === undefined) return undefined;
  try {
    const { port, password } = await readCredentials(directory);
    return clusterUrl(port, password, databaseName);
  } catch (error) {
    throw explainFileError(error, directory);
  }
}

// Until the daemon handles signals, Ctrl-C would end this process without the exit that stops Postgres.
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
  #cluster: ClusterDirectory;
  #credentials: Credentials;
  #logger: Logger;
  #logFile: string;
  #check: Interval;
  #pid: number | undefined;
  #stopping: Promise<void> | undefined;

  constructor(dataDir: string, cluster: ClusterDirectory, credentials: Credentials, logger: Logger) {
    this.#dataDir = dataDir;
    this.#cluster = cluster;
    this.#credentials = credentials;
    this.#logger = logger;
    this.#logFile = join(dataDir, 'postgres.log');
    this.#check = new Interval('embedded-postgres', checkEveryMs, () => this.#restartIfGone(), logger);
  }

  urlOf(database: string): string {
    return clusterUrl(this.#credentials.port, this.#credentials.password, database);
  }

  async start(): Promise<void> {
    process.once('exit', this.#interrupt);
    try {
      this.#pid = (await this.#adopt()) ?? (await this.#launch({ mayChangePort: true }));
      await createDatabase(this.urlOf('postgres'), databaseName);
      await this.#check.start();
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
    await this.#check.stop();
    await stopPostmaster(this.#cluster.directory);
    this.#pid = undefined;
    process.removeListener('exit', this.#interrupt);
  }

  // A daemon that exits without a shutdown stops its database too, so that no process is left behind.
  #interrupt = (): void => {
    try {
      if (this.#pid !== undefined) process.kill(this.#pid, 'SIGINT');
    } catch {
      // It has already exited.
    }
  };

  /** Adopts the postmaster of a killed daemon if it answers; otherwise stops it. */
  async #adopt(): Promise<number | undefined> {
    const pid = await postmasterPid(this.#cluster.directory);
    if (pid === undefined) return undefined;
    const gone = async () => (await postmasterPid(this.#cluster.directory)) !== pid;
    if ((await waitForAnswer(this.urlOf('postgres'), gone, adoptMs)) === 'yes') {
      this.#logger.warn({ pid }, 'adopted the postgres of a daemon that was killed');
      return pid;
    }
    this.#logger.warn({ pid }, 'stopping a postgres that does not answer');
    await stopPostmaster(this.#cluster.directory);
    return undefined;
  }

  /** Starts a postmaster. Retries while the previous one still stops; may change the port if another program has it. */
  async #launch({ mayChangePort }: { mayChangePort: boolean }): Promise<number> {
    for (let attempt = 1; ; attempt++) {
      const offset = await rotateLog(this.#logFile);
      // No postmaster runs here (this was checked), so the pid in the file is dead or belongs to another program.
      await rm(join(this.#cluster.directory, 'postmaster.pid'), { force: true });
      const { port } = this.#credentials;
      this.#logger.info({ port }, 'starting postgres');
      const child = spawnPostmaster(this.#cluster, { port, settings, logFile: this.#logFile });
      child.unref();
      // Registered at once, so that an exit from now on stops it.
      this.#pid = child.pid;
      await spawned(child);
      const gone = async () => child.exitCode !== null || child.signalCode !== null;
      const answer = await waitForAnswer(this.urlOf('postgres'), gone, startMs);
      if (answer === 'yes' && child.pid !== undefined) return child.pid;
      if (!(await gone())) await stopPostmaster(this.#cluster.directory);
      this.#pid = undefined;
      const output = (await readFile(this.#logFile)).subarray(offset).toString();
      if (answer === 'denied') throw denied(this.#dataDir);
      if (attempt >= 5 || !isTransient(output)) throw explainStart(output, this.#logFile);
      if (mayChangePort && isPortInUse(output)) await this.#changePort();
      await new Promise((resolve) => setTimeout(resolve, 300 * attempt));
    }
  }

  async #changePort(): Promise<void> {
    this.#credentials = { ...this.#credentials, port: await freePort() };
    await writeCredentials(this.#dataDir, this.#credentials);
  }

  async #restartIfGone(): Promise<void> {
    if ((await postmasterPid(this.#cluster.directory)) !== undefined) return;
    this.#logger.error({ log: this.#logFile }, 'postgres exited, restarting it');
    this.#pid = undefined;
    // The daemon's connections use this port.
    this.#pid = await this.#launch({ mayChangePort: false });
  }
}

/** Renames a large log; returns the offset of the next line. */
async function rotateLog(file: string): Promise<number> {
  const size = (await stat(file).catch(() => undefined))?.size ?? 0;
  if (size <= maxLogBytes) return size;
  await rename(file, `${file}.1`);
  return 0;
}

function isPortInUse(output: string): boolean {
  return /Address already in use|could not bind/i.test(output);
}

function isTransient(output: string): boolean {
  return isPortInUse(output) || /shared memory block .* still in use/i.test(output);
}

function denied(dataDir: string): EmbeddedPostgresError {
  return new EmbeddedPostgresError(
    `the database in ${dataDir} does not accept the password in ${credentialsFile(dataDir)}; put the old file back`,
  );
}

function explainStart(output: string, logFile: string): EmbeddedPostgresError {
  if (/No space left on device/i.test(output)) {
    return new EmbeddedPostgresError(
      'postgres did not start: no room is left on its disk; free some or set DATA_DIR elsewhere',
    );
  }
  return new EmbeddedPostgresError(`postgres did not start; the end of ${logFile}:\n${lastLines(output)}`);
}
