// Positions of readers of the log. A position is not a number: transactions commit out of order, so the last `seq` does
// not tell which events a reader has seen. A pg_snapshot does, and this process can compare two of them.

export interface Position {
  /** Every event whose transaction is visible in this pg_snapshot has been read. */
  seen: string;
  /**
   * In the middle of a large read: of the events that became visible between `seen` and `until`, those up to `xid, seq`
   * have been read.
   */
  page?: { until: string; xid: string; seq: string };
}

/** A snapshot in which no transaction is visible. */
export const beginning: Position = { seen: '1:1:' };

const snapshotText = /^\d{1,20}:\d{1,20}:(\d{1,20}(,\d{1,20})*)?$/;

export function formatPosition({ seen, page }: Position): string {
  return page ? `${seen}|${page.until}|${page.xid}|${page.seq}` : seen;
}

/** Returns undefined if the text is not a position. */
export function parsePosition(text: string): Position | undefined {
  const parts = text.split('|');
  const [seen = '', until, xid, seq] = parts;
  if (!snapshotText.test(seen)) return undefined;
  if (parts.length === 1) return { seen };
  if (parts.length !== 4 || !until || !xid || !seq) return undefined;
  if (!snapshotText.test(until) || !/^\d{1,20}$/.test(xid) || !/^\d{1,19}$/.test(seq)) return undefined;
  return { seen, page: { until, xid, seq } };
}

/** True if a reader at this position has read the event. */
export function hasRead(position: Position | undefined): (event: { xid: string; seq: string }) => boolean {
  const seen = position && parseSnapshot(position.seen);
  if (!seen) return () => false;
  const { page } = position;
  const until = page && parseSnapshot(page.until);
  return ({ xid, seq }) => {
    const number = BigInt(xid);
    if (isVisible(number, seen)) return true;
    if (!page || !until || !isVisible(number, until)) return false;
    const [pageXid, pageSeq] = [BigInt(page.xid), BigInt(page.seq)];
    return number < pageXid || (number === pageXid && BigInt(seq) <= pageSeq);
  };
}

/**
 * True if a reader can move from `earlier` to `later` without having read an event in between. A read without events
 * ends at a snapshot, never in the middle of a page.
 */
export function continues(later: string, earlier: string): boolean {
  if (later === earlier) return true;
  const [to, from] = [parsePosition(later), parsePosition(earlier)];
  if (!to || !from || to.page) return false;
  const [reached, passed] = [parseSnapshot(to.seen), parseSnapshot(from.page?.until ?? from.seen)];
  return reached !== undefined && passed !== undefined && covers(reached, passed);
}

/** A pg_snapshot. */
export interface Snapshot {
  /** All transactions below had ended. */
  xmin: bigint;
  /** No transaction from here on had started. */
  xmax: bigint;
  /** Transactions between the two that were in progress. */
  xip: ReadonlySet<bigint>;
}

/** Parses a text such as `10:20:10,14,15`; undefined if it is not a snapshot. */
export function parseSnapshot(text: string): Snapshot | undefined {
  const match = /^(\d{1,19}):(\d{1,19}):((?:\d{1,19},)*\d{1,19})?$/.exec(text);
  if (!match) return undefined;
  const [, xmin = '', xmax = '', xip] = match;
  const snapshot = { xmin: BigInt(xmin), xmax: BigInt(xmax), xip: new Set(xip ? xip.split(',').map(BigInt) : []) };
  if (snapshot.xmin < 1n || snapshot.xmin > snapshot.xmax) return undefined;
  for (const xid of snapshot.xip) if (xid < snapshot.xmin || xid >= snapshot.xmax) return undefined;
  return snapshot;
}

export function requireSnapshot(text: string): Snapshot {
  const snapshot = parseSnapshot(text);
  if (!snapshot) throw new Error(`not a snapshot: ${JSON.stringify(text)}`);
  return snapshot;
}

export function formatSnapshot({ xmin, xmax, xip }: Snapshot): string {
  // Postgres refuses a list that is not sorted.
  return `${xmin}:${xmax}:${[...xip].sort((a, b) => (a < b ? -1 : 1)).join(',')}`;
}

export function isVisible(xid: bigint, { xmin, xmax, xip }: Snapshot): boolean {
  return xid < xmin || (xid < xmax && !xip.has(xid));
}

/** True if everything visible in `earlier` is visible in `later` too. */
export function covers(later: Snapshot, earlier: Snapshot): boolean {
  for (const xid of later.xip) if (isVisible(xid, earlier)) return false;
  // Transactions above `later` must have been in progress for `earlier`.
  if (earlier.xmax - later.xmax > BigInt(earlier.xip.size)) return false;
  for (let xid = later.xmax; xid < earlier.xmax; xid++) if (isVisible(xid, earlier)) return false;
  return true;
}
