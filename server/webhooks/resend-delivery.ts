// A person's word on deliveries: send one again, or trust an address again that answered 410.
import type { Queryable } from '../database/database.ts';
import type { Schema } from '../database/identifiers.ts';
import { normalizeUrl } from '../kernel/fields.ts';
import { type Delivery, deliveryColumns } from './delivery.ts';

/** With a fresh set of tries, whatever became of it before. Undefined: there is no such delivery. */
export async function resendDelivery(db: Queryable, schema: Schema, id: string): Promise<Delivery | undefined> {
  const rows = await db.query<Delivery>(
    `update ${schema}.webhook_deliveries set state = 'pending', attempts = 0, next_at = now(), locked_until = null, finished_at = null
      where id = $1 returning ${deliveryColumns}`,
    [id],
  );
  return rows[0];
}

/** New events go to the address again. Those held back meanwhile stay as failed ones, to be resent by hand. */
export async function enableAddress(db: Queryable, schema: Schema, url: string): Promise<number> {
  const rows = await db.query(
    `update ${schema}.webhook_deliveries set state = 'failed' where state = 'disabled' and url = any($1::text[]) returning id`,
    // Deliveries of an older version keep the address as it was typed.
    [[url, normalizeUrl(url)]],
  );
  return rows.length;
}
