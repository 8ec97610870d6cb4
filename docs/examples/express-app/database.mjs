// The shop's own connections and tables.
import pg from 'pg';

export const databaseUrl = process.env.DATABASE_URL;
export const pool = new pg.Pool({ connectionString: databaseUrl });

export async function createTables() {
  await pool.query(
    'create table if not exists orders (id serial primary key, customer text not null, amount int not null, invoice text)',
  );
}
