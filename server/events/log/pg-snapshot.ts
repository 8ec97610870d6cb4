// A pg_snapshot in this process: who saw what, without asking the database.

export interface Snapshot {
  /** Everything below was over. */
  xmin: bigint;
  /** Nothing from here on had begun. */
  xmax: bigint;
  /** Still running, between the two. */
  xip: ReadonlySet<bigint>;
}

/** `10:20:10,14,15`; undefined if it is none. */
export function parseSnapshot(text: string): Snapshot | undefined {
  const match = /^(\d{1,19}):(\d{1,19}):((?:\d{1,19},)*\d{1,19})?$/.exec(text);
  if (!match) return undefined;
  const [, xmin = '', xmax = '', xip] = match;
  const snapshot = { xmin: BigInt(xmin), xmax: BigInt(xmax), xip: new Set(xip ? xip.split(',').map(BigInt) : []) };
  if (snapshot.xmin < 1n || snapshot.xmin > snapshot.xmax) return undefined;
  for (const xid of snapshot.xip) if (xid < snapshot.xmin || xid >= snapshot.xmax) return undefined;
  return snapshot;
}

export function formatSnapshot({ xmin, xmax, xip }: Snapshot): string {
  // Postgres refuses a list that is not in order.
  return `${xmin}:${xmax}:${[...xip].sort((a, b) => (a < b ? -1 : 1)).join(',')}`;
}

export function isVisible(xid: bigint, { xmin, xmax, xip }: Snapshot): boolean {
  return xid < xmin || (xid < xmax && !xip.has(xid));
}

/** Whether everything visible in `earlier` is visible in `later` too. */
export function covers(later: Snapshot, earlier: Snapshot): boolean {
  for (const xid of later.xip) if (isVisible(xid, earlier)) return false;
  // What `later` does not reach must have been running for `earlier`.
  if (earlier.xmax - later.xmax > BigInt(earlier.xip.size)) return false;
  for (let xid = later.xmax; xid < earlier.xmax; xid++) if (isVisible(xid, earlier)) return false;
  return true;
}
