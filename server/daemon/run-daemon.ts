// The process of a daemon: settings, the embedded Postgres if DATABASE_URL is not set, the daemon, signals and the exit
// code.
import { join } from 'node:path';
import { isOutage } from '../database/servers/availability.ts';
import { explainDatabaseError } from '../database/sql-errors.ts';
import { prepareDemo, sampleJob } from '../demo/demo-tenant.ts';
import { demoHandlers } from '../demo/handlers.ts';
import { EmbeddedPostgresError } from '../embedded-postgres/embedded-postgres-error.ts';
import { type EmbeddedPostgres, startEmbeddedPostgres } from '../embedded-postgres/start.ts';
import { type Config, ConfigError, loadConfig } from '../kernel/config.ts';
import { loadEnvFile, packageRoot, packageVersion } from '../kernel/environment.ts';
import { errorMessage, StartError } from '../kernel/errors.ts';
import { createLogger, type Logger } from '../kernel/logger.ts';
import type { DrainResult } from '../stats/metrics.ts';
import { createSignInLink } from '../tenants/api-keys/sessions.ts';
import { HandlerRegistry } from '../worker/handlers/handler-registry.ts';
import { loadHandlers } from '../worker/handlers/load-handlers.ts';
import { ThreadPool } from '../worker/threads/thread-pool.ts';
import { Daemon } from './daemon.ts';
import { IdleMemory } from './idle-memory.ts';

// The process exits this long after the drain, even if something keeps it alive.
const exitMarginMs = 5000;

/**
 * Exit codes for supervisors and deploy scripts: whether the drain interrupted jobs, and whether handlers were cut off.
 */
const exitCodes: Record<DrainResult, number> = { clean: 0, grace_over: 3, forced: 4 };

/** Runs until a stop is requested; resolves when the daemon is running. */
export async function runDaemon(): Promise<void> {
  const launcher = findLauncher();
  let stopDaemon: ((request: StopRequest) => void) | undefined;
  // Before the daemon exists, exiting is enough: the exit stops an embedded Postgres.
  onStopRequest(launcher, (request) => (stopDaemon === undefined ? process.exit(130) : stopDaemon(request)));
  loadEnvFile();
  const config = loadConfig();
  const logger = createLogger(config.logLevel, isOutage);
  guardAgainstStrayErrors(logger);
  const version = packageVersion();
  const threads = new ThreadPool({ maxThreads: config.handlerThreads, memoryMb: config.handlerThreadMemoryMb, logger });
  const definitions = config.handlers === '' ? demoHandlers : await loadHandlers(config.handlers);
  const handlers = new HandlerRegistry(definitions, threads);
  const embedded =
    config.databaseUrl === '' ? await startEmbeddedPostgres({ dataDir: config.dataDir, logger }) : undefined;
  const daemon = new Daemon({
    config,
    databaseUrl: embedded?.url ?? config.databaseUrl,
    logger,
    handlers,
    version,
    dashboardDir: join(packageRoot(), 'dist', 'dashboard'),
  });
  let isStopping = false;
  stopDaemon = (request) => {
    isStopping = true;
    stop(request, daemon, embedded, config, logger);
  };
  try {
    await daemon.start();
    new IdleMemory().start();
    // Set by `leasehold dev`, which has printed everything at its first start.
    if (process.env.LEASEHOLD_RESTARTED === 'true') {
      process.stdout.write(`\n  Leasehold is running at ${daemon.url} with ${handlers.types().join(', ')}\n\n`);
    } else await announce(daemon, config, embedded !== undefined, handlers);
  } catch (error) {
    // The stop has closed the resources of the start, and ends the process.
    if (isStopping) return;
    await daemon.stop(0);
    await embedded?.stop();
    throw error;
  }
}

/** Prints the address, the keys, and one command to paste. */
async function announce(daemon: Daemon, config: Config, embedded: boolean, handlers: HandlerRegistry): Promise<void> {
  const lines = ['', `  Leasehold is running at ${daemon.url}`];
  if (daemon.adminKey !== undefined) {
    lines.push('', `  Admin key (shown once, keep it): ${daemon.adminKey.text}`);
  }
  if (config.demoTenant === 'always' || (config.demoTenant === 'auto' && embedded)) {
    const key = await prepareDemo(daemon.db, config.dataDir);
    await daemon.registry.refresh();
    const link = await createSignInLink(daemon.db, key);
    lines.push('', '  Dashboard (the link signs in once, within 15 minutes):', `  ${daemon.url}/sign-in#${link}`);
    lines.push('', `  Key of tenant "demo": ${key}`);
    const sample = sampleJob(handlers);
    if (sample !== undefined) {
      const { type, payload, missing } = sample;
      const body = JSON.stringify({ type, payload }).replaceAll("'", "'\\''");
      lines.push(
        '',
        missing === undefined ? '  Run a job:' : `  Run a job (fill in its payload first; ${missing}):`,
        `  curl -X POST ${daemon.url}/api/targets/machine-1/jobs -H 'Authorization: Bearer ${key}' -H 'Content-Type: application/json' -d '${body}'`,
      );
    }
    lines.push('', '  See its status:', `  curl ${daemon.url}/api/jobs -H 'Authorization: Bearer ${key}'`);
    if (config.handlers === '') {
      lines.push(
        '',
        '  Your own jobs: `npx leasehold init` writes a first one, `npx leasehold dev` runs those of ./jobs.',
      );
    }
  }
  process.stdout.write(`${lines.join('\n')}\n\n`);
}

function stop(
  { cause, count }: StopRequest,
  daemon: Daemon,
  embedded: EmbeddedPostgres | undefined,
  config: Config,
  logger: Logger,
): void {
  const running = daemon.workers.runningCount;
  const graceSeconds = config.shutdownGracePeriodSeconds;
  const fields = { cause, requests: count, running, types: daemon.workers.runningTypes, graceSeconds };
  logger.info(fields, count === 1 ? 'shutting down' : 'shutting down at once');
  if (process.stdout.isTTY && count === 1) process.stdout.write(`\n  ${explainDrain(fields)}\n\n`);
  const stopped = daemon.stop();
  if (count > 1) return;
  const graceMs = (config.shutdownGracePeriodSeconds + config.cancelGraceSeconds) * 1000;
  setTimeout(() => {
    logger.error('shutdown took too long; exiting');
    process.exit(1);
  }, graceMs + exitMarginMs).unref();
  void stopped
    .then(() => embedded?.stop())
    .then(
      () => process.exit(exitCodes[daemon.drainResult ?? 'clean']),
      (error) => {
        logger.error({ err: error }, 'shutdown failed');
        process.exit(1);
      },
    );
}

/** The state that a person at the terminal waits for. @internal */
export function explainDrain(drain: { running: number; types: readonly string[]; graceSeconds: number }): string {
  const { running, types, graceSeconds } = drain;
  if (running === 0) return 'Stopping. No jobs are running.';
  const jobs = running === 1 ? '1 running job' : `${running} running jobs`;
  return `Stopping. Waiting up to ${graceSeconds} s for ${jobs} (${types.join(', ')}). Press Ctrl-C again to stop at once.`;
}

/** A handler that throws from a timer, or rejects unhandled, must not end the jobs of all tenants. */
function guardAgainstStrayErrors(logger: Logger): void {
  process.on('uncaughtException', (error) => logger.error({ err: error }, 'uncaught exception'));
  process.on('unhandledRejection', (error) => logger.error({ err: error }, 'unhandled rejection'));
}

/** Prints a message for errors that the operator can fix, and the stack for a defect. */
export function explainStartError(error: unknown): string {
  const expected = [ConfigError, EmbeddedPostgresError, StartError].some((kind) => error instanceof kind);
  if (expected) return errorMessage(error);
  return explainDatabaseError(error) ?? (error as Error)?.stack ?? String(error);
}

interface StopRequest {
  /** A signal, or `launcher gone`. */
  cause: string;
  count: number;
}

const signals = ['SIGTERM', 'SIGINT', 'SIGHUP'] as const;
// One request may arrive twice: Ctrl-C reaches every process of the terminal's group, and npm forwards its own copy.
const duplicateMs = 1000;
const launcherCheckMs = 500;

function onStopRequest(launcher: number | undefined, listener: (request: StopRequest) => void): void {
  let count = 0;
  let last: { cause: string; at: number } | undefined;
  const request = (cause: string) => {
    const at = performance.now();
    if (last?.cause === cause && at - last.at < duplicateMs) return;
    last = { cause, at };
    count += 1;
    listener({ cause, count });
  };
  for (const signal of signals) process.on(signal, request);
  if (launcher === undefined) return;
  const timer = setInterval(() => {
    if (process.ppid === launcher) return;
    clearInterval(timer);
    // A launcher that exits during the drain has forwarded its signal, so this is not a second request.
    if (count === 0) request('launcher gone');
  }, launcherCheckMs).unref();
}

/**
 * The process that started this one, if an npm script or npx did: a signal may end them before they forward it.
 * Undefined for a daemon that was started directly, and for one in its own process group (setsid, a job of an
 * interactive shell), which may outlive its parent on purpose.
 * @public Its test calls it in a separate process.
 */
export function findLauncher(env: NodeJS.ProcessEnv = process.env): number | undefined {
  // Set by scripts/bootstrap.mjs, which starts before it installs and builds.
  const remembered = Number(env.LEASEHOLD_LAUNCHER_PID);
  delete env.LEASEHOLD_LAUNCHER_PID;
  if (env.npm_lifecycle_event === undefined || leadsItsGroup()) return undefined;
  return remembered > 0 ? remembered : process.ppid;
}

function leadsItsGroup(): boolean {
  try {
    // The id of a group is that of the process that leads it.
    return process.kill(-process.pid, 0);
  } catch {
    return false;
  }
}
