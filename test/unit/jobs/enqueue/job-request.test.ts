import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { jobRequest, requestHash, requestHashes } from '../../../../server/jobs/enqueue/job-request.ts';
import { isTargetId, timeField } from '../../../../server/kernel/fields.ts';

const parse = (given: object) => jobRequest.parse({ type: 'x', ...given });
const hash = (given: object) => requestHashes(parse(given)).requestHash;

describe('the hash of a request', () => {
  it('does not depend on the order of fields, at any depth', () => {
    const shuffled = (value: unknown): unknown => {
      if (Array.isArray(value)) return value.map(shuffled);
      if (typeof value !== 'object' || value === null) return value;
      return Object.fromEntries(
        Object.entries(value)
          .reverse()
          .map(([key, inner]) => [key, shuffled(inner)]),
      );
    };
    fc.assert(
      fc.property(fc.jsonValue(), (payload) => {
        expect(hash({ payload: shuffled(payload) })).toBe(hash({ payload }));
      }),
    );
  });

  it('depends on every field except the key', () => {
    const base = hash({ payload: { a: [1, 2] } });
    expect(hash({ payload: { a: [1, 2] }, client_request_id: 'k' })).toBe(base);
    for (const other of [
      { payload: { a: [2, 1] } },
      { payload: { a: ['1', 2] } },
      { payload: { a: [1, 2] }, target_id: 't' },
      { payload: { a: [1, 2] }, priority: 'LOW' },
    ]) {
      expect(hash(other)).not.toBe(base);
    }
  });

  it('is the same if a default is written out, and accepts the hash of earlier versions', () => {
    const plain = requestHashes(parse({ payload: {} }));
    expect(plain).toEqual({ requestHash: requestHash({ type: 'x', payload: {} }), earlierHash: undefined });
    for (const given of [
      {},
      { payload: null },
      { payload: {}, priority: 'NORMAL' },
      { queue: 'default' },
      { after: [] },
    ]) {
      const request = parse(given);
      expect(requestHashes(request)).toEqual({ ...plain, earlierHash: requestHash(request) });
    }
    const after = hash({ after: ['a', { job: 'b', on_failure: 'cancel' }] });
    expect(
      hash({
        after: [
          { job: 'a', on_failure: 'hold' },
          { job: 'b', on_failure: 'cancel' },
        ],
      }),
    ).toBe(after);
    expect(hash({ after: ['a', 'b'] })).not.toBe(after);
  });

  it('is the same for one instant in two time zones', () => {
    expect(hash({ run_at: '2026-01-01T02:00:00+02:00' })).toBe(hash({ run_at: '2026-01-01T00:00:00Z' }));
  });
});

describe('times', () => {
  it.each([
    ['2026-01-31T08:00:00Z', '2026-01-31T08:00:00.000000Z'],
    ['2026-01-31T08:00:00.123456Z', '2026-01-31T08:00:00.123456Z'],
    ['2026-01-31T08:00:00.1234567899Z', '2026-01-31T08:00:00.123456Z'],
    ['2026-01-31T00:30:00.5+01:00', '2026-01-30T23:30:00.500000Z'],
    ['9999-12-31T23:59:59Z', '9999-12-31T23:59:59.000000Z'],
  ])('%s is %s', (given, expected) => {
    expect(timeField().parse(given)).toBe(expected);
  });

  it.each([
    '2026-01-31',
    '2026-02-30T00:00:00Z',
    '2026-01-31T08:00:00',
    '9999-12-31T23:59:59-01:00',
    '0000-01-01T00:00:00Z',
    'now',
  ])('%s is refused', (given) => {
    expect(timeField().safeParse(given).success).toBe(false);
  });
});

it.each([
  ['machine-1', true],
  ['a/b c', true],
  ['ü', true],
  ['x'.repeat(200), true],
  ['x'.repeat(201), false],
  ['', false],
  ['.', false],
  ['..', false],
  [' a', false],
  ['a\u2028b', false],
  ['a\tb', false],
])('%j is a target id: %s', (text, expected) => {
  expect(isTargetId(text)).toBe(expected);
});
