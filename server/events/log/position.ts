// Where a reader of the log stands. Not a number: transactions commit out of order, so the last seq
// seen says nothing about what was seen. A pg_snapshot says it exactly.

export interface Position {
  /** Every event whose transaction is visible in this pg_snapshot has been read. */
  seen: string;
  /** In the middle of a large read: of what became visible between `seen` and `until`, up to `xid, seq`. */
  page?: { until: string; xid: string; seq: string };
}

/** No transaction is visible in it. */
export const beginning: Position = { seen: '1:1:' };

const snapshotText = /^\d{1,20}:\d{1,20}:(\d{1,20}(,\d{1,20})*)?$/;

export function formatPosition({ seen, page }: Position): string {
  return page ? `${seen}|${page.until}|${page.xid}|${page.seq}` : seen;
}

/** Undefined if the text is no position. */
export function parsePosition(text: string): Position | undefined {
  const parts = text.split('|');
  const [seen = '', until, xid, seq] = parts;
  if (!snapshotText.test(seen)) return undefined;
  if (parts.length === 1) return { seen };
  if (parts.length !== 4 || !until || !xid || !seq) return undefined;
  if (!snapshotText.test(until) || !/^\d{1,20}$/.test(xid) || !/^\d{1,19}$/.test(seq)) return undefined;
  return { seen, page: { until, xid, seq } };
}
