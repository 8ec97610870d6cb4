// An Express app with Leasehold inside: an order and the job that ships it are committed together, or not at all.
//   DATABASE_URL=postgres://localhost/shop npx tsx app.ts
//   curl -X POST localhost:3000/orders -H 'Content-Type: application/json' -d '{"customer": "ann"}'
import type { AddressInfo } from 'node:net';
import express from 'express';
import { defineJob, z } from 'leasehold';
import { createLeasehold } from 'leasehold/server';
import pg from 'pg';

const databaseUrl = process.env.DATABASE_URL ?? 'postgres://localhost/shop';
const pool = new pg.Pool({ connectionString: databaseUrl });
await pool.query(
  'create table if not exists orders (id int generated always as identity primary key, customer text, shipped_at timestamptz)',
);

const shipOrder = defineJob({
  type: 'order.ship',
  payload: z.object({ orderId: z.int() }),
  retry: { attempts: 5, on: 'any' },
  run: ({ payload, job, lease }) =>
    inTransaction(async (tx) => {
      // Fails, and rolls back what follows, if another worker owns the job by now.
      await tx.query('select tenant_shop.assert_lease($1, $2)', [job.id, lease.id]);
      await tx.query('update orders set shipped_at = now() where id = $1', [payload.orderId]);
      return { shipped: payload.orderId };
    }),
});

const leasehold = await createLeasehold({ databaseUrl, jobs: [shipOrder], tenants: ['shop'] });
await leasehold.start();

const app = express();
app.post('/orders', express.json(), async (request, response) => {
  const { customer } = z.object({ customer: z.string().min(1) }).parse(request.body);
  const answer = await inTransaction(async (tx) => {
    const { rows } = await tx.query<{ id: number }>('insert into orders (customer) values ($1) returning id', [
      customer,
    ]);
    const orderId = rows[0]?.id ?? 0;
    // The orders of one customer are shipped one at a time, in order.
    const job = await leasehold.enqueue('shop', shipOrder, { orderId }, { tx, targetId: customer });
    return { orderId, jobId: job.id };
  });
  response.status(201).json(answer);
});
// The API and the dashboard. Callers need an API key: `npx leasehold keys create --tenant shop --name ops`.
app.use('/leasehold', leasehold.router());

const server = app.listen(Number(process.env.PORT ?? 3000), () => {
  console.log(`listening on port ${(server.address() as AddressInfo).port}`);
});

process.once('SIGTERM', async () => {
  server.close();
  await leasehold.stop(); // running jobs end first
  await pool.end();
});

async function inTransaction<T>(work: (tx: pg.PoolClient) => Promise<T>): Promise<T> {
  const tx = await pool.connect();
  try {
    await tx.query('begin');
    const result = await work(tx);
    await tx.query('commit');
    return result;
  } catch (error) {
    await tx.query('rollback');
    throw error;
  } finally {
    tx.release();
  }
}
