// Logs whether the database can be reached: a line when it becomes unavailable, one when it is back, a summary in
// between. Connection errors are marked, so that other code does not log each of them.
import { errorMessage } from '../../kernel/errors.ts';
import type { Logger } from '../../kernel/logger.ts';

const summaryEveryMs = 30_000;
// Connections that break at the same moment, e.g. by a restart of the server, are one event.
const gatherMs = 250;

const outages = new WeakSet<object>();

/** Whether `Availability` already reports this error. */
export function isOutage(error: unknown): boolean {
  return typeof error === 'object' && error !== null && outages.has(error);
}

export class Availability {
  readonly #logger: Logger;
  #away: { since: number; failures: number; reportedAt: number } | undefined;
  #lost = 0;
  #lostTimer: NodeJS.Timeout | undefined;

  constructor(logger: Logger) {
    this.#logger = logger;
  }

  /** No connection could be made. */
  connectFailed(error: unknown): void {
    mark(error);
    const now = performance.now();
    if (this.#away === undefined) {
      this.#away = { since: now, failures: 1, reportedAt: now };
      this.#logger.error({ reason: errorMessage(error) }, 'database cannot be used; trying until it can');
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
