// Rows that Postgres refuses because of their content. A retry cannot succeed, so the row is isolated and the others
// are processed without it.
import { type Queryable, sqlState } from './database.ts';

/** A value out of range (22), a constraint (23) or a limit of Postgres, such as the size of an index row (54). */
export function isDataError(error: unknown): boolean {
  return /^(22|23|54)/.test(sqlState(error) ?? '');
}

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

/** Runs `work` on all items except those that make it fail: bisects a failing list until the invalid items are alone. */
export async function withoutFaulty<T, R>(
  tx: Queryable,
  items: readonly T[],
  work: (items: readonly T[]) => Promise<R[]>,
  onFaulty: (item: T, error: unknown) => void,
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
    onFaulty(only, failure);
    return [];
  }
  if (items.length === 0) throw failure;
  const middle = Math.ceil(items.length / 2);
  return [
    ...(await withoutFaulty(tx, items.slice(0, middle), work, onFaulty)),
    ...(await withoutFaulty(tx, items.slice(middle), work, onFaulty)),
  ];
}
