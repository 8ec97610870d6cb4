// Limits the bytes that a query returns, so that pages and claims neither fill the memory nor block the event loop.

/** Maximum bytes of documents in one page or claim. The first row is always returned, however large. */
export const answerBytes = 4_194_304;

/** SQL for the approximate text size of a jsonb column. Reads the value only if it is stored compressed. */
export function jsonBytes(column: string): string {
  return `coalesce(case when pg_column_compression(${column}) is null then pg_column_size(${column})
    else octet_length(${column}::text) end, 0)`;
}

/**
 * The rows of a query that has a column `bytes`, as long as those before fit; `found` counts all of them, so that
 * the reader knows whether it got less. `order` must be the order of the query, and unique.
 */
export function withinBytes(query: string, order: string): string {
  return `select * from (
     select q.*, count(*) over () as found, sum(q.bytes) over (order by ${order}) - q.bytes as bytes_before from (${query}) q) p
    where bytes_before < ${answerBytes} order by ${order}`;
}
