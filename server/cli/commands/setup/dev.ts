// `leasehold dev`: a daemon for development, in any directory. Starts Postgres once, and restarts the daemon whenever a
// file of ./jobs changes. Jobs that such a restart interrupts are resumed.
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, type FSWatcher, watch } from 'node:fs';
import { createRequire } from 'node:module';
import { join, resolve } from 'node:path';
import { pathToFileURL } from 'node:url';
import type { Command } from 'commander';
import { freePort } from '../../../embedded-postgres/cluster.ts';
import { startEmbeddedPostgres } from '../../../embedded-postgres/start.ts';
import { packageRoot } from '../../../kernel/environment.ts';
import { createLogger } from '../../../kernel/logger.ts';
import type { Session } from '../../session.ts';

// Editors write a file in several steps.
const debounceMs = 200;

export function addDevCommand(program: Command, session: Session): void {
  program
    .command('dev')
    .description('run a daemon with its own Postgres and the jobs of ./jobs; restarts it when they change')
    .option('--jobs <path>', 'the directory of your jobs', './jobs')
    .action(async ({ jobs }: { jobs: string }) => {
      const { config, terminal } = session;
      const print = (text: string) => terminal.out(`${text}\n`);
      if (config.databaseUrl === '') print(`Starting Postgres; its data is in ${resolve(config.dataDir)}`);
      const postgres =
        config.databaseUrl === ''
          ? await startEmbeddedPostgres({ dataDir: config.dataDir, logger: createLogger('warn') })
          : undefined;
      try {
        const env = {
          DATABASE_URL: postgres?.url ?? config.databaseUrl,
          DEMO_TENANT: 'always',
          // The address stays the same over restarts.
          PORT: String(config.port === 0 ? await freePort() : config.port),
          RESUME_DRAINED_JOBS: 'true',
          SHUTDOWN_GRACE_PERIOD_SECONDS: process.env.SHUTDOWN_GRACE_PERIOD_SECONDS ?? '3',
        };
        const server = new DevServer(resolve(jobs), env, print);
        session.failed = (await server.run()) !== 0;
      } finally {
        await postgres?.stop();
      }
    });
}

class DevServer {
  readonly #jobs: string;
  readonly #env: Record<string, string>;
  readonly #print: (text: string) => void;
  readonly #watchers: FSWatcher[] = [];
  #child: ChildProcess | undefined;
  #starts = 0;
  #timer: NodeJS.Timeout | undefined;
  #restarting = false;
  #stopping = false;

  constructor(jobs: string, env: Record<string, string>, print: (text: string) => void) {
    this.#jobs = jobs;
    this.#env = env;
    this.#print = print;
  }

  /** Runs until a signal. Resolves with the exit code of the daemon. */
  async run(): Promise<number> {
    const exited = new Promise<number>((end) => {
      const stop = (signal: NodeJS.Signals) => void this.#stop(signal).then(end);
      for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, stop);
    });
    this.#announce();
    this.#watch();
    this.#start();
    return exited;
  }

  #announce(): void {
    const found = `The jobs of ${this.#jobs} run; the daemon restarts when they change.`;
    const missing = `There is no ${this.#jobs} yet: demo jobs run. \`npx leasehold init\` writes a first job of yours.`;
    this.#print(existsSync(this.#jobs) ? found : missing);
  }

  #watch(): void {
    const watchJobs = () => this.#watchers.push(watch(this.#jobs, { recursive: true }, () => this.#changed()));
    if (existsSync(this.#jobs)) return void watchJobs();
    const parent = watch(resolve(this.#jobs, '..'), () => {
      if (!existsSync(this.#jobs)) return;
      parent.close();
      watchJobs();
      this.#changed();
    });
    this.#watchers.push(parent);
  }

  #changed(): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => void this.#restart(), debounceMs);
  }

  async #restart(): Promise<void> {
    if (this.#stopping || this.#restarting) return;
    this.#restarting = true;
    this.#print('Jobs have changed: restarting.');
    await this.#end('SIGTERM');
    this.#restarting = false;
    if (!this.#stopping) this.#start();
  }

  #start(): void {
    this.#starts += 1;
    const child = spawn(process.execPath, daemonArguments(), {
      stdio: 'inherit',
      env: {
        ...process.env,
        ...this.#env,
        ...(existsSync(this.#jobs) && { HANDLERS: this.#jobs }),
        // The daemon drains if this process is killed.
        LEASEHOLD_LAUNCHER_PID: String(process.pid),
        npm_lifecycle_event: 'dev',
        ...(this.#starts > 1 && { LEASEHOLD_RESTARTED: 'true' }),
      },
    });
    this.#child = child;
    child.once('exit', (code) => {
      if (this.#stopping || this.#restarting || code === null) return;
      this.#print('The daemon has ended. It starts again when a file of your jobs changes.');
    });
  }

  async #stop(signal: NodeJS.Signals): Promise<number> {
    this.#stopping = true;
    clearTimeout(this.#timer);
    for (const watcher of this.#watchers) watcher.close();
    return this.#end(signal);
  }

  /** A terminal sends Ctrl-C to the daemon too, which counts both as one. */
  async #end(signal: NodeJS.Signals): Promise<number> {
    const child = this.#child;
    if (child === undefined) return 0;
    if (child.exitCode === null && child.signalCode === null) {
      child.kill(signal);
      await once(child, 'exit');
    }
    return child.exitCode ?? 1;
  }
}

/** Starts the daemon of this package: compiled, or from source with the TypeScript loader. */
function daemonArguments(): string[] {
  if (!import.meta.url.endsWith('.ts')) return [join(packageRoot(), 'dist', 'main.js')];
  const loader = createRequire(import.meta.url).resolve('tsx');
  return ['--import', pathToFileURL(loader).href, join(packageRoot(), 'server', 'main.ts')];
}
