import { expect, test } from 'vitest';
import { afterText, childrenText } from '../../../server/explain/dependency-reasons.ts';

test.each([
  [1, 1, 'one other job, which has not ended'],
  [1, 0, 'one other job, which has ended'],
  [2, 2, '2 other jobs, none of which has ended'],
  [3, 1, '3 other jobs, of which 1 has not ended'],
  [1500, 1200, '1,500 other jobs, of which 1,200 have not ended'],
  [2, 0, '2 other jobs, all of which have ended'],
])('of %i jobs %i have not ended', (total, unfinished, text) => {
  expect(afterText(total, unfinished)).toBe(text);
});

test('the text distinguishes one child from several', () => {
  expect(childrenText(1, 1)).toBe('its child');
  expect(childrenText(3, 1)).toBe('1 of its 3 children');
});
