// The options of `createLeasehold`, and how they become those of a daemon. The environment is not read.
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import type { DaemonOptions } from '../daemon/daemon-context.ts';
import { ConfigError, configOf } from '../kernel/config.ts';
import { packageRoot, packageVersion } from '../kernel/environment.ts';
import { HandlerRegistry } from '../worker/handlers/handler-registry.ts';
import { loadHandlers } from '../worker/handlers/load-handlers.ts';
import { ThreadPool } from '../worker/threads/thread-pool.ts';
import type { HostPool, LeaseholdOptions } from './api.ts';
import { loggerFor } from './host-logger.ts';

export async function toDaemonOptions(options: LeaseholdOptions): Promise<DaemonOptions> {
  const { jobs = [], settings = {} } = options;
  const databaseUrl = options.databaseUrl ?? (options.pool && urlOfPool(options.pool));
  if (!databaseUrl) throw new ConfigError('createLeasehold needs a databaseUrl or a pool');
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
    retentionHooks: { onStale: options.onStale, onDelete: options.onDelete },
  };
}

function dashboardDirectory(): string | undefined {
  const directory = join(packageRoot(), 'dist', 'dashboard');
  return existsSync(directory) ? directory : undefined;
}

/**
 * The address of the host's pool. Its connections are not used: ours have limits, type parsers and prepared statements of
 * their own, and must be free for outcomes and leases when the host's are all in use.
 */
function urlOfPool({ options }: HostPool): string {
  const { connectionString, host, port, user, password, database, ssl } = options as Record<string, unknown>;
  if (typeof connectionString === 'string') return connectionString;
  const isPlain = (value: unknown) => value === undefined || typeof value === 'string' || typeof value === 'number';
  if (![host, port, user, password, database].every(isPlain) || typeof host !== 'string' || host.startsWith('/')) {
    throw new ConfigError(
      'the pool has no address that Leasehold can use for its own connections; pass databaseUrl too',
    );
  }
  if (typeof ssl === 'object') throw new ConfigError('the pool has certificates of its own; pass databaseUrl too');
  const url = new URL(`postgres://${host}:${port ?? 5432}/${encodeURIComponent(String(database ?? user ?? ''))}`);
  url.username = encodeURIComponent(String(user ?? ''));
  url.password = encodeURIComponent(String(password ?? ''));
  if (ssl === true) url.searchParams.set('sslmode', 'verify-full');
  return url.href;
}
