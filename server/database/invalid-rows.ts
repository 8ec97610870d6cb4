// Rows that Postgres refuses because of their content. A retry cannot succeed, so the row is isolated and the others
// are processed without it.
import type { Queryable } from './database.ts';
import { isDataError } from './sql-errors.ts';

/** Runs `work` in a savepoint; undefined if it failed with a data error and was rolled back. */
export async function attempt<R>(
  tx: Queryable,
  work: () => Promise<R>,
  onDataError: (error: unknown) => void,
): Promise<R | undefined> {
  await tx.query('savepoint attempt');
  try {
    const result = await work();
    await tx.query('release savepoint attempt');
    return result;
  } catch (error) {
    if (!isDataError(error)) throw error;
    await tx.query('rollback to savepoint attempt');
    await tx.query('release savepoint attempt');
    onDataError(error);
    return undefined;
  }
}

/**
 * Runs `work` on all items except those that make it fail: bisects a failing list until the invalid items are alone.
 */
export async function withoutInvalidRows<T, R>(
  tx: Queryable,
  items: readonly T[],
  work: (items: readonly T[]) => Promise<R[]>,
  onInvalid: (item: T, error: unknown) => void,
): Promise<R[]> {
  let failure: unknown;
  const results = await attempt(
    tx,
    () => work(items),
    (error) => {
      failure = error;
    },
  );
  if (results !== undefined) return results;
  const [only] = items;
  if (items.length === 1 && only !== undefined) {
    onInvalid(only, failure);
    return [];
  }
  if (items.length === 0) throw failure;
  const middle = Math.ceil(items.length / 2);
  return [
    ...(await withoutInvalidRows(tx, items.slice(0, middle), work, onInvalid)),
    ...(await withoutInvalidRows(tx, items.slice(middle), work, onInvalid)),
  ];
}
