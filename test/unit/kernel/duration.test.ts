import { expect, test } from 'vitest';
import { parseDuration } from '../../../server/kernel/clock.ts';

test.each([
  [1500, 1500],
  ['500ms', 500],
  ['90s', 90_000],
  ['1h30m', 5_400_000],
  ['1.5h', 5_400_000],
  ['2w 1d', 15 * 86_400_000],
])('%s is %i ms', (text, ms) => {
  expect(parseDuration(text)).toBe(ms);
});

test.each([-1, Number.NaN, Number.POSITIVE_INFINITY, '', '3', '3 days', 'd', '-3d', '99999999w'])(
  '%s is refused',
  (text) => {
    expect(() => parseDuration(text)).toThrow('such as "90s", "3d" or "1h30m"');
  },
);
