// Reads a large result in batches, sorted once, with a cursor of the surrounding transaction.
import type { Queryable } from './database.ts';

/** One scan at a time in a transaction. */
export async function* scan<R extends object>(tx: Queryable, select: string, batch = 5000): AsyncGenerator<R[]> {
  await tx.query(`declare scan no scroll cursor for ${select}`);
  try {
    for (;;) {
      const rows = await tx.query<R>(`fetch ${Math.trunc(batch)} from scan`);
      if (rows.length === 0) return;
      yield rows;
    }
  } finally {
    await tx.query('close scan').catch(() => {});
  }
}
