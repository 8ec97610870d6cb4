// What strangers cost: requests with made-up keys share statements, and never stand in the way of valid ones.
import { randomBytes } from 'node:crypto';
import { expect, test } from 'vitest';
import type { Queryable } from '../../../../server/database/database.ts';
import { createLogger } from '../../../../server/kernel/logger.ts';
import { createApiKey } from '../../../../server/tenants/api-keys/key-store.ts';
import { KeyVerifier } from '../../../../server/tenants/api-keys/verifier.ts';
import { useTenant } from '../../../support/postgres/database.ts';

const context = useTenant();
const madeUp = () => `lh_${randomBytes(8).toString('hex')}_${randomBytes(32).toString('hex')}`;
const newKey = () => createApiKey(context.db, { tenantId: context.tenant.id, name: 'k', scopes: ['read'] });

/** A verifier, and the number of statements that it has under way and has sent. */
function countingVerifier() {
  const count = { sent: 0, most: 0 };
  let underWay = 0;
  const db: Queryable = {
    async query(text, values) {
      count.sent += 1;
      underWay += 1;
      count.most = Math.max(count.most, underWay);
      return context.db.query(text, values as unknown[]).finally(() => {
        underWay -= 1;
      }) as never;
    },
  };
  return { verifier: new KeyVerifier(db, { adminApiKey: '' }, createLogger('silent')), count };
}

test('three thousand invented keys cost a few statements on one connection, and valid ones among them are accepted', async () => {
  const { verifier, count } = countingVerifier();
  const valid = [await newKey(), await newKey(), await newKey()];
  const texts = Array.from({ length: 3000 }, (_, i) => valid[i / 1000]?.text ?? madeUp());
  const found = await Promise.all(texts.map((text) => verifier.verify(text)));
  expect(found.flatMap((key) => (key ? [key.id] : []))).toEqual(valid.map((key) => key.id));
  expect(count.sent).toBeLessThanOrEqual(3000 / 500);
  expect(count.most).toBe(1);
});

test('one unknown key that is sent repeatedly is read once', async () => {
  const { verifier, count } = countingVerifier();
  const text = madeUp();
  for (let i = 0; i < 50; i++) expect(await verifier.verify(text)).toBeUndefined();
  expect(await Promise.all([verifier.verify(text), verifier.verify(text)])).toEqual([undefined, undefined]);
  expect(count.sent).toBe(1);
});

test('a flood is refused before it fills the memory; a key that is known to be valid is still accepted', async () => {
  const { verifier, count } = countingVerifier();
  const key = await newKey();
  expect(await verifier.verify(key.text)).toMatchObject({ id: key.id });
  // Rejections are handled from the start: some come before the known key is verified.
  const flood = Promise.allSettled(Array.from({ length: 6000 }, () => verifier.verify(madeUp())));
  expect(await verifier.verify(key.text)).toMatchObject({ id: key.id });
  const results = await flood;
  const refused = results.filter((result) => result.status === 'rejected');
  expect(refused.length).toBe(1000);
  expect(refused[0]).toMatchObject({ reason: { code: 'TOO_MANY_REQUESTS' } });
  expect(count.sent).toBeLessThan(30);
});

test('a wrong secret for a valid id is refused, and does not affect the right one', async () => {
  const { verifier } = countingVerifier();
  const key = await newKey();
  const wrong = key.text.slice(0, -64) + randomBytes(32).toString('hex');
  expect(await verifier.verify(wrong)).toBeUndefined();
  expect(await verifier.verify(key.text)).toMatchObject({ id: key.id });
});
