// A shop in Express that runs its jobs itself: an order and its invoice job are written in one transaction, the invoices of
// a customer are sent in order, and the people of the shop see the jobs at /ops.
import express from 'express';
import { createLeasehold } from 'leasehold/server';
import { createTables, databaseUrl, pool } from './database.mjs';
import { sendInvoice } from './jobs.mjs';

await createTables();
const leasehold = await createLeasehold({ databaseUrl, jobs: [sendInvoice], tenants: ['shop'] });
leasehold.on('job.failed', ({ jobId, data }) => console.error('job failed', jobId, data));
await leasehold.start();

const app = express();
app.use(express.json());

app.post('/orders', async (request, response) => {
  const { customer, amount } = request.body;
  const client = await pool.connect();
  try {
    await client.query('begin');
    const { rows } = await client.query('insert into orders (customer, amount) values ($1, $2) returning id', [
      customer,
      amount,
    ]);
    const orderId = rows[0].id;
    // The target: the invoices of one customer are sent one after the other.
    await leasehold.enqueue('shop', sendInvoice, { orderId, amount }, { tx: client, targetId: `customer-${customer}` });
    if (amount <= 0) throw new Error('an order needs an amount');
    await client.query('commit');
    response.status(201).json({ id: orderId });
  } catch (error) {
    await client.query('rollback');
    response.status(400).json({ error: error.message });
  } finally {
    client.release();
  }
});

app.get('/orders/:id', async (request, response) => {
  const { rows } = await pool.query('select * from orders where id = $1', [request.params.id]);
  response.status(rows.length === 0 ? 404 : 200).json(rows[0] ?? {});
});

// Your own sign-in decides who may see the jobs; here a header stands for it.
const staff = (request) => {
  const name = request.headers['x-staff'];
  return name === undefined ? undefined : { tenant: 'shop', actor: `user:${name}` };
};
app.use('/ops', leasehold.router({ authorize: staff }));

const server = app.listen(Number(process.env.PORT ?? 3000), '127.0.0.1', () => {
  console.log(`shop at http://127.0.0.1:${server.address().port}`);
});

// Signals belong to the program: stop taking orders, then let running jobs end.
process.once('SIGTERM', async () => {
  server.close();
  await leasehold.stop({ graceSeconds: 20 });
  await pool.end();
  console.log('stopped');
});
