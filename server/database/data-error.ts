// Rows that Postgres refuses for what they contain. Trying again cannot help, so the row has to be
// found among the others, and the others have to go on without it.
import { type Queryable, sqlState } from './database.ts';

/** A value out of range (22), a constraint (23) or a limit of Postgres, such as the size of an index row (54). */
export function isDataError(error: unknown): boolean {
  return /^(22|23|54)/.test(sqlState(error) ?? '');
}

/** Does `work` in a part of the transaction that can be taken back; undefined if it failed with a data error. */
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

/** `work` on all items but those that make it fail: halves a failing list until the faulty items are alone. */
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
