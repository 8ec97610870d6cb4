// Converts the options of `createLeasehold` to those of a daemon. The environment is not read.
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { pino } from 'pino';
import type { DaemonOptions } from '../daemon/daemon-context.ts';
import { ConfigError, configOf } from '../kernel/config.ts';
import { packageRoot, packageVersion } from '../kernel/environment.ts';
import type { Logger } from '../kernel/logger.ts';
import { HandlerRegistry } from '../worker/handlers/handler-registry.ts';
import { loadHandlers } from '../worker/handlers/load-handlers.ts';
import { ThreadPool } from '../worker/threads/thread-pool.ts';
import type { HostLogger, HostPool, LeaseholdOptions, LogLine } from './api.ts';

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
 * Returns the address of the host's pool. Its connections are not used: ours have their own limits, type parsers and
 * prepared statements, and must be free for outcomes and leases when the host's are all in use.
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

// The logger of an embedded Leasehold: the host's logger, or warnings and errors as JSON on standard error.

const errorLevel = pino.levels.values.error ?? 50;
const warnLevel = pino.levels.values.warn ?? 40;
const infoLevel = pino.levels.values.info ?? 30;

/** `false` logs nothing. */
function loggerFor(given: HostLogger | false | undefined, level: string): Logger {
  if (given === false) return pino({ level: 'silent' });
  if (given === undefined) {
    const toStderr = pino.destination({ fd: 2, sync: true });
    return pino({ level, base: {}, timestamp: pino.stdTimeFunctions.isoTime }, toStderr);
  }
  return pino({
    level,
    base: {},
    hooks: {
      logMethod(args, _method, levelNumber) {
        const [first, second] = args as [unknown, unknown];
        const isText = typeof first === 'string';
        const fields = { ...this.bindings(), ...(isText ? {} : (first as object)) };
        const message = isText ? first : second;
        writeOf(given, levelNumber)(fields, typeof message === 'string' ? message : undefined);
      },
    },
  });
}

function writeOf(host: HostLogger, level: number): LogLine {
  if (level >= errorLevel) return host.error.bind(host);
  if (level >= warnLevel) return host.warn.bind(host);
  if (level >= infoLevel) return host.info.bind(host);
  return (host.debug ?? host.info).bind(host);
}
