// Compares positions of readers of the log: what one has read, and whether another has read at least that.

import { covers, isVisible, parseSnapshot } from './pg-snapshot.ts';
import { type Position, parsePosition } from './position.ts';

/** Whether a reader at this position has been past an event. */
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
 * Whether a reader that was at `earlier` can be at `later`, without having read any event in between: a read that
 * finds none ends at a snapshot, never in the middle of a page.
 */
export function continues(later: string, earlier: string): boolean {
  if (later === earlier) return true;
  const [to, from] = [parsePosition(later), parsePosition(earlier)];
  if (!to || !from || to.page) return false;
  const [reached, passed] = [parseSnapshot(to.seen), parseSnapshot(from.page?.until ?? from.seen)];
  return reached !== undefined && passed !== undefined && covers(reached, passed);
}
