// Places that last: limited in all, for a tenant and for a key; the last ones are for tenants that have none.
import { expect, test } from 'vitest';
import { Quota } from '../../../server/kernel/quota.ts';

const of = (tenantId: string, keyId = `key of ${tenantId}`) => ({ tenantId, keyId });

test('the last places are reserved for tenants without any', () => {
  const quota = new Quota('things', { total: 40 });
  for (let i = 0; i < 38; i++) quota.enter(of('a'));
  expect(() => quota.enter(of('a'))).toThrow('This server has 38 things');
  quota.enter(of('b'));
  expect(() => quota.enter(of('b'))).toThrow('This server');
  quota.enter(of('c'));
  expect(() => quota.enter(of('d'))).toThrow('This server has 40 things');
  expect(quota.used).toBe(40);
});

test('a place is released once, however often the function is called', () => {
  const quota = new Quota('things', { total: 10, perTenant: 1, perKey: 1 });
  const leave = quota.enter(of('a'));
  expect(() => quota.enter(of('a', 'another key'))).toThrow('The tenant has 1 things on this server');
  leave();
  leave();
  expect(quota.used).toBe(0);
  quota.enter(of('a'));
  expect(() => quota.enter(of('b', 'key of a'))).toThrow('The API key has 1 things on this server');
});
