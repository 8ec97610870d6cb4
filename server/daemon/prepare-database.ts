// Waits until the database can be used, and reports why it cannot.
import { setTimeout as delay } from 'node:timers/promises';
import { isOutage } from '../database/servers/availability.ts';
import { errorMessage } from '../kernel/errors.ts';
import type { Logger } from '../kernel/logger.ts';

/** Retries `prepare` while the database is wrong or unreachable, as long as `wanted`. */
export async function untilDatabaseAnswers(
  prepare: () => Promise<void>,
  wanted: () => boolean,
  logger: Logger,
): Promise<void> {
  let reported = '';
  for (let attempt = 1; wanted(); attempt++) {
    try {
      return await prepare();
    } catch (error) {
      if (!isUnavailable(error)) throw error;
      const waitMs = Math.min(500 * 2 ** Math.min(attempt, 6), 15_000) * (0.75 + Math.random() / 4);
      // Once for each reason; an unreachable database is logged by Availability.
      if (!isOutage(error) && errorMessage(error) !== reported) {
        reported = errorMessage(error);
        logger.error({ reason: reported }, 'database cannot be used yet; check DATABASE_URL');
      }
      const until = performance.now() + waitMs;
      while (performance.now() < until && wanted()) await delay(50);
    }
  }
}

/** Errors of the connection, not of a statement. */
function isUnavailable(error: unknown): boolean {
  const code = error instanceof Error && 'code' in error ? String(error.code) : '';
  // 28*: wrong user or password, 3D000: no such database, 53*/57P*: too busy, starting or stopping.
  // 25006: a standby, or read-only. 55P03: another daemon migrates.
  return (
    isOutage(error) ||
    /^(E[A-Z]+|08|25006|28|3D000|53|55P03|57P)/.test(code) ||
    /timeout|terminated|ECONN/i.test(errorMessage(error))
  );
}
