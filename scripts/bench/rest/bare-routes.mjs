// What W8 and W9 are compared with: the least that an Express program does to store a row and to read one. It answers
// after the commit; express.json(), a pool with its default size, no validation, no key, no log.
import express from 'express';
import pg from 'pg';

const pool = new pg.Pool({ connectionString: process.env.BENCH_URL });
const app = express();
app.use(express.json());

app.post('/rows', async (request, response) => {
  const { type, payload, run_at } = request.body;
  const { rows } = await pool.query(
    'insert into bare.rows (type, payload, run_at) values ($1, $2, $3) returning id, type, payload, run_at, created_at',
    [type, payload, run_at],
  );
  response.status(201).json(rows[0]);
});

app.get('/rows/:id', async (request, response) => {
  const { rows } = await pool.query('select id, type, payload, run_at, created_at from bare.rows where id = $1', [
    request.params.id,
  ]);
  response.json(rows[0]);
});

const server = app.listen(0, '127.0.0.1', () => process.send(`http://127.0.0.1:${server.address().port}`));
process.on('disconnect', () => process.exit(0));
