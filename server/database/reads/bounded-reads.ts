// Reads that are bounded in memory and do not block the event loop: limited in bytes, or read in batches.
import type { Queryable } from '../database.ts';

/**
 * Maximum bytes of documents in one page. The first row is always returned, whatever its size. Rows that arrive
 * together are parsed in one turn of the event loop; half a megabyte of small objects takes about 35 ms.
 */
const answerBytes = 524_288;

/** The same limit for one claim, which may be answered in the turn in which other attempts end. */
export const claimBytes = 262_144;

/** SQL for the approximate text size of a jsonb column. Reads the value only if it is stored compressed. */
export function jsonBytes(column: string): string {
  return `coalesce(case when pg_column_compression(${column}) is null then pg_column_size(${column})
    else octet_length(${column}::text) end, 0)`;
}

/**
 * SQL for the rows of a query with a column `bytes`, up to the limit. `found` counts all rows, so that the reader knows
 * whether some are missing. `order` must be the order of the query, and unique.
 */
export function withinBytes(query: string, order: string, bytes = answerBytes): string {
  return `select * from (
     select q.*, count(*) over () as found, sum(q.bytes) over (order by ${order}) - q.bytes as bytes_before from (${query}) q) p
    where bytes_before < ${bytes} order by ${order}`;
}

/**
 * Reads a large result in batches, with a cursor of the surrounding transaction. A transaction has one scan at a time.
 */
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
