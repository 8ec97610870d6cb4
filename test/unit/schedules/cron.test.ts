import { expect, test } from 'vitest';
import { dueTimes, findCronError, nextTimes } from '../../../server/schedules/cron.ts';

test('a fixed time runs once a day across clock changes', () => {
  // 29 March 2026: 02:00 becomes 03:00 in Berlin. 25 October 2026: 03:00 becomes 02:00.
  const spring = nextTimes('30 2 * * *', 'Europe/Berlin', '2026-03-28T00:00:00Z', 3);
  expect(spring).toEqual(['2026-03-28T01:30:00.000Z', '2026-03-29T01:00:00.000Z', '2026-03-30T00:30:00.000Z']);
  const autumn = nextTimes('30 2 * * *', 'Europe/Berlin', '2026-10-24T00:00:00Z', 3);
  expect(autumn).toEqual(['2026-10-24T00:30:00.000Z', '2026-10-25T00:30:00.000Z', '2026-10-26T01:30:00.000Z']);
});

test('an hourly time runs every hour of a long and of a short day', () => {
  const hours = (zone: string, from: string, to: string) =>
    nextTimes('0 * * * *', zone, from, 40).filter((time) => time < `${to}.000Z`).length;
  expect(hours('America/New_York', '2026-03-08T04:59:00Z', '2026-03-09T04:00:00')).toBe(23);
  expect(hours('America/New_York', '2026-11-01T03:59:00Z', '2026-11-02T05:00:00')).toBe(25);
  // Half an hour, in Lord Howe's summer time.
  expect(nextTimes('0 12 * * *', 'Australia/Lord_Howe', '2026-10-03T00:00:00Z', 2)).toEqual([
    '2026-10-03T01:30:00.000Z',
    '2026-10-04T01:00:00.000Z',
  ]);
});

test('errors name invalid expressions and zones', () => {
  expect(findCronError('* * * *', 'UTC')?.field).toBe('cron');
  expect(findCronError('61 * * * *', 'UTC')?.field).toBe('cron');
  expect(findCronError('0 0 * * *', 'Mars/Base')?.field).toBe('timezone');
  expect(findCronError('0 0 8 * * MON-FRI', 'Asia/Tokyo')).toBeUndefined();
});

const hourly = { cron: '0 * * * *', timezone: 'UTC', nextAt: '2026-01-01T01:00:00.000Z' };
const now = '2026-01-01T05:30:00.000000Z';

test.each([
  ['skip', [], 5],
  ['latest', ['2026-01-01T05:00:00.000Z'], 4],
  ['all', ['01', '02', '03', '04', '05'].map((h) => `2026-01-01T${h}:00:00.000Z`), 0],
] as const)('missed runs under %s', (missed, fire, dropped) => {
  expect(dueTimes({ ...hourly, missed }, now)).toEqual({ fire, dropped, nextAt: '2026-01-01T06:00:00.000Z' });
});

test('a run that is on time fires under every policy, without the missed one before it', () => {
  for (const missed of ['skip', 'latest'] as const) {
    expect(dueTimes({ ...hourly, missed }, '2026-01-01T03:00:01Z').fire).toEqual(['2026-01-01T03:00:00.000Z']);
  }
});

test('the policy all is bounded, and weeks of missed seconds are not enumerated', () => {
  const bySecond = { cron: '* * * * * *', timezone: 'UTC', nextAt: '2025-12-01T00:00:00.000Z' };
  const due = dueTimes({ ...bySecond, missed: 'all' }, now);
  expect(due.fire.length).toBe(161);
  expect(Date.parse(due.nextAt ?? '')).toBeGreaterThan(Date.parse(now));
});
