import { expect, test } from 'vitest';
import { sumUsage } from '../../../server/dashboard/src/data/usage.ts';

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
