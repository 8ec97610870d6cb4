import { expect, test } from 'vitest';
import { type Limit, limitEntry } from '../../../server/dashboard/src/data/jobs/limits.ts';

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
