// Repeats what an attempt sends to the database while that is away for a moment, as long as its lease is trusted: work that
// is done does not fail because its result could not be stored at once.
import { isConnectionError, isTransient } from '../../database/sql-errors.ts';
import { type Stopping, sleep, throwIfStopped } from '../stop-reason.ts';

const retryMs = 250;
// A lost connection is followed by the loss of the lease if it lasts. A statement that this server never finishes is not.
const maxTransientErrors = 100;

/**
 * `work` must be safe to repeat: whether it took effect is not known when the connection is lost. Rejects when the attempt
 * must stop, which it must once its lease may be over.
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
