// A daemon inside the test's process: fast settings, a free port, stopped at the end of the test.
import { afterAll, beforeAll, onTestFinished } from 'vitest';
import { Daemon } from '../../../server/daemon/daemon.ts';
import { demoHandlers } from '../../../server/demo/handlers.ts';
import { loadConfig } from '../../../server/kernel/config.ts';
import { createLogger, type Logger } from '../../../server/kernel/logger.ts';
import type { JobDefinition } from '../../../server/worker/handlers/define-job.ts';
import { HandlerRegistry } from '../../../server/worker/handlers/handler-registry.ts';
import { ThreadPool } from '../../../server/worker/threads/thread-pool.ts';
import { type DatabaseContext, directUrl } from '../postgres/database.ts';

/** Settings under which leases, sweeps and polls take fractions of a second. */
export const fastSettings: Record<string, string> = {
  PORT: '0',
  LOG_LEVEL: process.env.TEST_LOG_LEVEL ?? 'silent',
  HEARTBEAT_INTERVAL_SECONDS: '0.2',
  LEASE_SECONDS: '15',
  STALE_LEASE_GRACE_SECONDS: '0.2',
  SWEEP_INTERVAL_SECONDS: '0.2',
  POLL_INTERVAL_SECONDS: '0.5',
  // Longer than a handler needs to stop on a busy machine. Tests of handlers that do not stop set less.
  CANCEL_GRACE_SECONDS: '10',
  SHUTDOWN_GRACE_PERIOD_SECONDS: '1',
  WORKER_CONCURRENCY: '20',
  TENANT_CONCURRENCY: '20',
  ADMIN_API_KEY: 'test-admin-key-0123456789-of-the-daemon',
};

export interface StartDaemon {
  env?: Record<string, string>;
  handlers?: readonly JobDefinition[];
  /** Where the built dashboard lies. */
  dashboardDir?: string;
  logger?: Logger;
}

export async function startDaemon(context: DatabaseContext, given: StartDaemon = {}): Promise<Daemon> {
  const daemon = createDaemon(context, given);
  onTestFinished(() => daemon.stop(0));
  await daemon.start();
  return daemon;
}

/** One daemon for all tests of a file: `const running = useDaemon(context)`, then `running.daemon.url`. */
export function useDaemon(context: DatabaseContext, given: StartDaemon = {}): { daemon: Daemon } {
  const running = {} as { daemon: Daemon };
  beforeAll(async () => {
    running.daemon = createDaemon(context, given);
    await running.daemon.start();
  });
  afterAll(() => running.daemon.stop(0));
  return running;
}

export function createDaemon(context: DatabaseContext, given: StartDaemon): Daemon {
  // LISTEN needs a session of its own.
  const listen = process.env.TEST_POOLER_URL && { LISTEN_DATABASE_URL: directUrl(context) };
  const config = loadConfig({ ...fastSettings, ...listen, ...given.env });
  const logger = given.logger ?? createLogger(config.logLevel);
  return new Daemon({
    config,
    databaseUrl: context.url,
    logger,
    handlers: new HandlerRegistry(
      [...demoHandlers, ...(given.handlers ?? [])],
      new ThreadPool({ maxThreads: config.handlerThreads, memoryMb: config.handlerThreadMemoryMb, logger }),
    ),
    version: 'test',
    dashboardDir: given.dashboardDir,
  });
}
