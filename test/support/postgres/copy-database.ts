// Copies a database like pg_dump and pg_restore, without their programs: the rows of all schemas of Leasehold, their
// functions and sequences, on another server. Transaction ids and the oids of tables are not part of a dump.
import type { Database } from '../../../server/database/database.ts';
import { migrateControl, migrateTenant } from '../../../server/database/migrations/migrate.ts';

export async function copyDatabase(from: Database, to: Database, schemaNames: readonly string[]): Promise<void> {
  await migrateControl(to);
  for (const name of schemaNames) await migrateTenant(to, name);
  for (const schema of ['leasehold', ...schemaNames]) await copySchema(from, to, schema);
}

async function copySchema(from: Database, to: Database, schema: string): Promise<void> {
  const tables = await from.query<{ name: string; columns: string }>(
    `select c.relname as name, string_agg(quote_ident(a.attname), ', ' order by a.attnum) as columns
       from pg_class c
       join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
      where c.relnamespace = $1::regnamespace and c.relkind = 'r'
      group by c.oid, c.relname
      order by exists (select from pg_constraint f where f.conrelid = c.oid and f.contype = 'f'), c.relname`,
    [schema],
  );
  await to.query(`truncate ${tables.map(({ name }) => `"${schema}"."${name}"`).join(', ')}`);
  for (const { name, columns } of tables) {
    const table = `"${schema}"."${name}"`;
    const [row] = await from.query<{ rows: string }>(
      `select coalesce(json_agg(t order by t.ctid), '[]')::text as rows from ${table} t`,
    );
    await to.query(
      `insert into ${table} (${columns}) overriding system value
       select ${columns} from json_populate_recordset(null::${table}, $1::json)`,
      [row?.rows],
    );
  }
  const functions = await from.query<{ definition: string }>(
    'select pg_get_functiondef(p.oid) as definition from pg_proc p where p.pronamespace = $1::regnamespace',
    [schema],
  );
  for (const { definition } of functions) await to.query(definition);
  const sequences = await from.query<{ name: string; value: string }>(
    `select sequencename as name, last_value::text as value from pg_sequences where schemaname = $1 and last_value is not null`,
    [schema],
  );
  for (const { name, value } of sequences)
    await to.query('select setval($1::regclass, $2)', [`"${schema}"."${name}"`, value]);
}
