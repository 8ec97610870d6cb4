// The jobs of the shop.
import { defineJob, z } from 'leasehold';
import { pool } from './database.mjs';

export const sendInvoice = defineJob({
  type: 'invoice.send',
  payload: z.object({ orderId: z.number(), amount: z.number() }),
  retry: { attempts: 3, delaySeconds: 5 },
  async run({ payload, log }) {
    const invoice = `INV-${payload.orderId}`;
    log(`sending ${invoice} over ${payload.amount}`);
    await pool.query('update orders set invoice = $2 where id = $1', [payload.orderId, invoice]);
    return { invoice };
  },
});
