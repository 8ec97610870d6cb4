// Retries the writes of an attempt while the database is briefly unavailable and the lease is trusted, so that finished
// work does not fail because its result could not be stored at once.
import { isConnectionError, isTransient } from '../../database/sql-errors.ts';
import { type Stopping, sleep, throwIfStopped } from '../stop-reason.ts';

const retryMs = 250;
// If the connection stays lost, the expiring lease ends the retries. A statement that this server cannot finish needs a
// limit.
const maxTransientErrors = 100;

/**
 * `work` must be safe to repeat, because it is unknown after a lost connection whether it took effect. Rejects when the
 * attempt must stop, at the latest when its lease may have expired.
 */
export async function retryWhileHeld<T>(stopping: Stopping, work: () => Promise<T>): Promise<T> {
  for (let transientErrors = 0; ; ) {
    try {
      return await work();
    } catch (error) {
      if (!isConnectionError(error)) {
        transientErrors += 1;
        if (!isTransient(error) || transientErrors > maxTransientErrors) throw error;
      }
      throwIfStopped(stopping.signal);
      await sleep(retryMs, stopping);
      throwIfStopped(stopping.signal);
    }
  }
}
