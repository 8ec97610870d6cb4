import { createHash } from 'node:crypto';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import {
  covers,
  formatSnapshot,
  isVisible,
  parseSnapshot,
  type Snapshot,
} from '../../../../server/events/log/position.ts';

import { decodeStreamId, encodeStreamId, streamIdsWithin } from '../../../../server/events/stream/stream-id.ts';

const t1 = { id: 't1', secret: 'b5f1c2d3-0000-4000-8000-000000000001' };
const t2 = { id: 't2', secret: 'b5f1c2d3-0000-4000-8000-000000000002' };

const highest = 30n;

/** Small ones, so that every transaction can be asked about. */
const snapshots = fc
  .tuple(fc.bigInt(1n, highest), fc.bigInt(1n, highest), fc.array(fc.bigInt(1n, highest)))
  .map(([a, b, running]): Snapshot => {
    const [xmin, xmax] = a < b ? [a, b] : [b, a];
    return { xmin, xmax, xip: new Set(running.filter((xid) => xid >= xmin && xid < xmax)) };
  });

describe('a snapshot', () => {
  it('is read and written as Postgres writes it', () => {
    expect(formatSnapshot(parseSnapshot('10:20:10,14,15') as Snapshot)).toBe('10:20:10,14,15');
    expect(formatSnapshot(parseSnapshot('10:10:') as Snapshot)).toBe('10:10:');
    for (const text of ['', '10:9:', '0:1:', '10:20:9', '10:20:20', '10:20:a', '10:20', "1:1:'", '1:1:1,']) {
      expect(parseSnapshot(text), text).toBeUndefined();
    }
  });

  it('covers another if and only if everything visible in that is visible in it', () => {
    fc.assert(
      fc.property(snapshots, snapshots, (later, earlier) => {
        let all = true;
        for (let xid = 1n; xid <= highest + 1n; xid++) all &&= !isVisible(xid, earlier) || isVisible(xid, later);
        expect(covers(later, earlier)).toBe(all);
      }),
      { numRuns: 2000 },
    );
  });
});

describe('the id of an event in a stream', () => {
  it('encodes the position of its reader', () => {
    fc.assert(
      fc.property(snapshots, snapshots, fc.bigInt(0n, 2n ** 62n), (seen, until, seq) => {
        expect(decodeStreamId(t1, encodeStreamId(t1, seen))).toEqual({ seen });
        const id = streamIdsWithin(t1, seen, until)(String(seq));
        expect(decodeStreamId(t1, id)).toEqual({ seen, batch: { until, seq } });
        expect(decodeStreamId(t2, id)).toBeUndefined();
      }),
    );
  });

  it('is short', () => {
    const seen = { xmin: 4_000_000_000n, xmax: 4_000_000_020n, xip: new Set([4_000_000_000n, 4_000_000_007n]) };
    expect(streamIdsWithin(t1, seen, seen)('123456789').length).toBeLessThan(120);
  });

  it('reveals nothing about the transactions in it', () => {
    const at = (xmin: bigint) => encodeStreamId(t1, { xmin, xmax: xmin + 1n, xip: new Set() });
    const [, sealed = ''] = at(4_000_000_000n).split('.');
    expect(Buffer.from(sealed, 'base64url').toString('latin1')).not.toContain(4_000_000_000n.toString(36));
    // Neighbours have nothing in common, and a wide snapshot is as long as a narrow one.
    expect(at(4_000_000_001n).slice(0, 6)).not.toBe(at(4_000_000_000n).slice(0, 6));
    const wide = encodeStreamId(t1, { xmin: 1n, xmax: 50n, xip: new Set([3n, 7n]) });
    expect(wide).toHaveLength(at(1n).length);
    expect(at(4_000_000_000n)).toBe(at(4_000_000_000n));
  });

  it('of an earlier version is still understood', () => {
    const mark = createHash('sha256').update('t1').digest('base64url').slice(0, 6);
    const seen = { xmin: 10n, xmax: 20n, xip: new Set([12n]) };
    expect(decodeStreamId(t1, `${mark}.a~a~2`)).toEqual({ seen });
    const until = { xmin: 20n, xmax: 21n, xip: new Set() };
    expect(decodeStreamId(t1, `${mark}.a~a~2.k~1.z`)).toEqual({ seen, batch: { until, seq: 35n } });
    expect(decodeStreamId(t2, `${mark}.a~a~2`)).toBeUndefined();
  });

  it('is refused in any other form', () => {
    fc.assert(fc.property(fc.string(), (text) => decodeStreamId(t1, text) === undefined));
    const good = encodeStreamId(t1, { xmin: 10n, xmax: 20n, xip: new Set([12n]) });
    for (const bad of [
      `${good}.`,
      `${good}.x`,
      `${good}~zzz`,
      `${good}.1~1.1.1`,
      `${good}.k~1.1`,
      good.slice(0, 7),
      good.toUpperCase(),
    ]) {
      expect(decodeStreamId(t1, bad), bad).toBeUndefined();
    }
  });
});
