// Logs whether the database can be reached: one line when it becomes unavailable, one when it is back, and a summary in
// between; and that writes fail, once in a while. Marks these errors, so that other code does not log each of them.
import { errorMessage } from '../../kernel/errors.ts';
import type { Logger } from '../../kernel/logger.ts';
import { Interval, type Service } from '../../kernel/service.ts';
import { sqlState } from '../sql-errors.ts';
import type { Servers } from './servers.ts';

const summaryEveryMs = 30_000;
// Connections that break at the same moment, for example at a restart of the server, are one event.
const gatherMs = 250;

const outages = new WeakSet<object>();

/** True if `Availability` already reports this error. */
export function isOutage(error: unknown): boolean {
  return typeof error === 'object' && error !== null && outages.has(error);
}

export class Availability {
  readonly #logger: Logger;
  #away: { since: number; failures: number; reportedAt: number } | undefined;
  #lost = 0;
  #lostTimer: NodeJS.Timeout | undefined;
  #failedWrites = 0;
  #failedWritesReportedAt = Number.NEGATIVE_INFINITY;

  constructor(logger: Logger) {
    this.#logger = logger;
  }

  /** No connection could be made. */
  connectFailed(error: unknown): void {
    mark(error);
    const now = performance.now();
    if (this.#away === undefined) {
      this.#away = { since: now, failures: 1, reportedAt: now };
      this.#logger.error({ reason: errorMessage(error) }, 'database cannot be used; retrying until it can');
      return;
    }
    this.#away.failures += 1;
    if (now - this.#away.reportedAt < summaryEveryMs) return;
    this.#away.reportedAt = now;
    const { failures, since } = this.#away;
    this.#logger.error(
      { reason: errorMessage(error), failures, awaySeconds: seconds(since) },
      'database still cannot be used',
    );
  }

  connected(): void {
    if (this.#away === undefined) return;
    const { failures, since } = this.#away;
    this.#away = undefined;
    this.#logger.info({ failures, awaySeconds: seconds(since) }, 'database can be used again');
  }

  /** The server answers, but is read-only, out of space, or its disk fails. */
  writeFailed(error: unknown): void {
    mark(error);
    const now = performance.now();
    this.#failedWrites += 1;
    if (now - this.#failedWritesReportedAt < summaryEveryMs) return;
    this.#logger.error(
      { reason: errorMessage(error), sqlState: sqlState(error), failures: this.#failedWrites },
      'database cannot write',
    );
    this.#failedWrites = 0;
    this.#failedWritesReportedAt = now;
  }

  /** A connection broke, idle or in use. */
  connectionLost(error: unknown): void {
    mark(error);
    this.#lost += 1;
    this.#lostTimer ??= setTimeout(() => {
      this.#lostTimer = undefined;
      this.#logger.warn({ connections: this.#lost, reason: errorMessage(error) }, 'database connections lost');
      this.#lost = 0;
    }, gatherMs).unref();
  }
}

function mark(error: unknown): void {
  if (typeof error === 'object' && error !== null) outages.add(error);
}

function seconds(since: number): number {
  return Math.round((performance.now() - since) / 100) / 10;
}

// Polls all servers of a database. Detects a primary that was demoted while its connections stay open, and two servers
// that both accept writes.

interface ServerMonitorOptions {
  servers: Servers;
  logger: Logger;
  /** Another server is used from now on. The connections to the previous one must be dropped. */
  onServerChanged(): void;
  everyMs?: number;
}

export class ServerMonitor implements Service {
  readonly name = 'database-servers';
  readonly #options: ServerMonitorOptions;
  readonly #interval: Interval;
  #generation: number;
  #reported = '[]';

  constructor(options: ServerMonitorOptions) {
    this.#options = options;
    this.#generation = options.servers.generation;
    this.#interval = new Interval(this.name, options.everyMs ?? 5_000, () => this.check(), options.logger);
  }

  async start(): Promise<void> {
    // With one host there is nothing to poll.
    if (this.#options.servers.urls.length > 1) await this.#interval.start();
  }

  async stop(): Promise<void> {
    await this.#interval.stop();
  }

  async check(): Promise<void> {
    const { servers, logger, onServerChanged: onMoved } = this.#options;
    // If no server accepts writes, the next connection attempt reports it.
    await servers.check().catch(() => {});
    if (servers.generation !== this.#generation) {
      this.#generation = servers.generation;
      logger.warn({ server: servers.currentName }, 'another database server accepts writes now; moving to it');
      onMoved();
    }
    const splitBrains = servers.splitBrains;
    const seen = JSON.stringify(splitBrains);
    if (seen === this.#reported) return;
    this.#reported = seen;
    for (const fields of splitBrains) logger.error(fields, 'two database servers accept writes; one is not used');
    if (splitBrains.length === 0) logger.info('only one database server accepts writes again');
  }
}
