// The options of `createLeasehold`, and how they become those of a daemon. The environment is not read.
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import type { DaemonOptions } from '../daemon/daemon-context.ts';
import { type Config, ConfigError, configOf } from '../kernel/config.ts';
import { packageRoot, packageVersion } from '../kernel/environment.ts';
import type { JobDefinition } from '../worker/handlers/define-job.ts';
import { HandlerRegistry } from '../worker/handlers/handler-registry.ts';
import { loadHandlers } from '../worker/handlers/load-handlers.ts';
import { ThreadPool } from '../worker/threads/thread-pool.ts';
import { type HostLogger, loggerFor } from './host-logger.ts';

/** Settings of the program `leaseholdd` that its host decides otherwise. */
type HostDecides = 'host' | 'port' | 'databaseUrl' | 'dataDir' | 'handlers' | 'demoTenant';

/** The settings of docs/configuration.md, with their values: `{ leaseSeconds: 30 }` is `LEASE_SECONDS=30`. */
export type LeaseholdSettings = Partial<Omit<Config, HostDecides>>;

export interface LeaseholdOptions {
  /** The Postgres to use: `postgres://user:password@host:5432/database`. */
  databaseUrl: string;
  /** The jobs that this process runs: definitions, or a module or directory of modules that exports them. */
  jobs?: readonly JobDefinition[] | string | undefined;
  /** Tenants that `start` creates if they are missing. */
  tenants?: readonly string[] | undefined;
  settings?: LeaseholdSettings | undefined;
  /** Where log lines go. Default: warnings and errors, as JSON, to standard error; `false`: nowhere. */
  logger?: HostLogger | false | undefined;
}

export async function toDaemonOptions(options: LeaseholdOptions): Promise<DaemonOptions> {
  const { databaseUrl, jobs = [], settings = {} } = options;
  if (databaseUrl === undefined || databaseUrl === '') throw new ConfigError('createLeasehold needs a databaseUrl');
  const hasLogger = typeof options.logger === 'object';
  const config = configOf({ logLevel: hasLogger ? 'info' : 'warn', ...settings, databaseUrl });
  const logger = loggerFor(options.logger, config.logLevel);
  const threads = new ThreadPool({ maxThreads: config.handlerThreads, memoryMb: config.handlerThreadMemoryMb, logger });
  const definitions = typeof jobs === 'string' ? await loadHandlers(jobs) : jobs;
  return {
    config,
    databaseUrl,
    logger,
    handlers: new HandlerRegistry(definitions, threads),
    version: packageVersion(),
    dashboardDir: dashboardDirectory(),
    embedded: true,
  };
}

function dashboardDirectory(): string | undefined {
  const directory = join(packageRoot(), 'dist', 'dashboard');
  return existsSync(directory) ? directory : undefined;
}
