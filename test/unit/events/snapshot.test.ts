import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { covers, formatSnapshot, isVisible, parseSnapshot, type Snapshot } from '../../../server/events/snapshot.ts';
import { decodeStreamId, encodeStreamId, streamIdsWithin } from '../../../server/events/stream-id.ts';

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
  it('says where its reader is', () => {
    fc.assert(
      fc.property(snapshots, snapshots, fc.bigInt(0n, 2n ** 62n), (seen, until, seq) => {
        expect(decodeStreamId('t1', encodeStreamId('t1', seen))).toEqual({ seen });
        const id = streamIdsWithin('t1', seen, until)(String(seq));
        expect(decodeStreamId('t1', id)).toEqual({ seen, batch: { until, seq } });
        expect(decodeStreamId('t2', id)).toBeUndefined();
      }),
    );
  });

  it('is short', () => {
    const seen = { xmin: 4_000_000_000n, xmax: 4_000_000_020n, xip: new Set([4_000_000_000n, 4_000_000_007n]) };
    expect(streamIdsWithin('t1', seen, seen)('123456789').length).toBeLessThan(50);
  });

  it('is refused when it is anything else', () => {
    fc.assert(fc.property(fc.string(), (text) => decodeStreamId('t1', text) === undefined));
    const good = encodeStreamId('t1', { xmin: 10n, xmax: 20n, xip: new Set([12n]) });
    for (const bad of [
      `${good}.`,
      `${good}.x`,
      `${good}~zzz`,
      `${good}.1~1.1.1`,
      good.slice(0, 7),
      good.toUpperCase(),
    ]) {
      expect(decodeStreamId('t1', bad), bad).toBeUndefined();
    }
  });
});
