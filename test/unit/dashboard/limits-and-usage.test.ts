import { expect, test } from 'vitest';
import { type Limit, limitEntry, sumUsage } from '../../../server/dashboard/src/data/limits-and-usage.ts';

test('usage is summed by unit, today and in all days, with the types that used most', () => {
  const row = (day: string, unit: string, type: string | null, used: number) => ({ day, unit, type, used });
  const rows = [
    row('2026-01-02', 'cents', null, 30),
    row('2026-01-01', 'cents', null, 12),
    row('2026-01-02', 'cents', 'agent', 20),
    row('2026-01-02', 'cents', 'mail', 10),
    row('2026-01-01', 'cents', 'mail', 12),
    row('2026-01-01', 'tokens', null, 5),
  ];
  expect(sumUsage(rows, new Date('2026-01-02T23:59:00Z'))).toEqual([
    {
      unit: 'cents',
      today: 30,
      total: 42,
      types: [
        { type: 'mail', used: 22 },
        { type: 'agent', used: 20 },
      ],
    },
    { unit: 'tokens', today: 0, total: 5, types: [] },
  ]);
});

const limit: Limit = {
  name: 'mail',
  type: null,
  queue: null,
  key: null,
  rate: null,
  per: null,
  concurrency: 2,
  waiting: 0,
  running: 1,
  keys: [],
};
const counted = { value: '', waiting: 0, running: 1, tokens: null, next_at: null };

test('every counted value of a limit has a name, and none repeats the counts of the limit', () => {
  expect(limitEntry(limit, counted)).toBeUndefined();
  expect(limitEntry(limit, { ...counted, tokens: 1200 })).toEqual({ name: 'tokens', text: '1,200' });
  const keyed = { ...limit, key: 'payload.account' };
  expect(limitEntry(keyed, { ...counted, value: 'acme' })).toEqual({ name: 'acme', text: '0 waiting, 1 running' });
  expect(limitEntry(keyed, counted)).toEqual({ name: 'no payload.account', text: '0 waiting, 1 running' });
});
