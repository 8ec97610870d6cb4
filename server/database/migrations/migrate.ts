// Applies migrations to one schema: one transaction per file (for a new schema, one for all), under a lock, recorded by
// name and hash in a journal of the schema. A schema without the journal table was not created by Leasehold and is not
// touched.
import type { Logger } from '../../kernel/logger.ts';
import type { Database, Queryable } from '../database.ts';
import { controlSchema, quoteSchema, type Schema } from '../identifiers.ts';
import { runQuery } from '../sql.ts';
import { sqlState } from '../sql-errors.ts';
import {
  isRefusedByCitus,
  type Migration,
  migrationsDirectory,
  readMigrations,
  statementsFor,
} from './migration-files.ts';

export class MigrationError extends Error {
  override name = 'MigrationError';
}

export interface MigrateOptions {
  logger?: Logger;
  /** The directory of the migration files; tests use their own. */
  directory?: string;
}

// Long DDL on a large tenant is allowed, and so is waiting for the process that runs it.
const whole = { timeoutMs: 6 * 3_600_000, lockTimeoutMs: 0 };
// Statements queue behind DDL that waits for a table lock, so it gives up soon and tries again.
const ddlLockTimeoutMs = 5_000;
const lockAttempts = 10;

/** Brings the control schema up to date; returns the names of the files applied by this call. */
export async function migrateControl(db: Database, logger?: Logger): Promise<string[]> {
  return migrateSchema(db, controlSchema, migrationsDirectory('control'), logger);
}

/** Creates a tenant's schema if needed and brings it up to date; returns the files applied by this call. */
export async function migrateTenant(db: Database, schemaName: string, options: MigrateOptions = {}): Promise<string[]> {
  return migrateSchema(db, tenantOnly(schemaName), options.directory ?? migrationsDirectory('tenant'), options.logger);
}

// Planning time grows with the number of tables in a statement.
const journalsAtOnce = 50;

/**
 * Returns the schemas that need no migration. One statement checks many, because every daemon checks all of them at
 * start.
 */
export async function schemasInStep(
  db: Queryable,
  schemaNames: readonly string[],
  options: MigrateOptions = {},
): Promise<Set<string>> {
  const files = await readMigrations(options.directory ?? migrationsDirectory('tenant'));
  const inStep = new Set<string>();
  for (let i = 0; i < schemaNames.length; i += journalsAtOnce) {
    const names = schemaNames.slice(i, i + journalsAtOnce);
    const journals = await readJournals(db, names);
    for (const name of names) {
      const journal = journals.get(name);
      if (journal && isInStep(tenantOnly(name), files, journal)) inStep.add(name);
    }
  }
  return inStep;
}

function isInStep(schema: Schema, files: Migration[], journal: Journal): boolean {
  try {
    return pendingOf(schema, files, journal).length === 0;
  } catch {
    // The migration of this schema reports the problem.
    return false;
  }
}

/** Empty if the journals cannot be read together: one does not exist yet, or the cluster does not join tenants. */
async function readJournals(db: Queryable, schemaNames: readonly string[]): Promise<Map<string, Journal>> {
  const selects = schemaNames.map(
    (name, i) => `select ${i} as position, name, hash from ${tenantOnly(name)}.migrations`,
  );
  const journals = new Map<string, Journal>();
  try {
    const rows = await db.query<{ position: number; name: string; hash: string }>(selects.join(' union all '));
    for (const { position, name, hash } of rows) {
      const schemaName = schemaNames[position] as string;
      journals.set(schemaName, (journals.get(schemaName) ?? new Map()).set(name, hash));
    }
  } catch (error) {
    const state = sqlState(error);
    // The server did not answer.
    if (state === undefined || state.startsWith('E')) throw error;
    journals.clear();
  }
  return journals;
}

async function migrateSchema(db: Database, schema: Schema, directory: string, logger?: Logger): Promise<string[]> {
  const files = await readMigrations(directory);
  const journal = await readJournal(db, schema);
  if (journal === undefined && files.length > 0 && (await createWhole(db, schema, files))) {
    logger?.info({ schema: bare(schema), migrations: files.length }, 'schema created');
    return files.map((file) => file.name);
  }
  const applied: string[] = [];
  // Another process may have created the schema meanwhile.
  for (const file of pendingOf(schema, files, journal ?? (await readJournal(db, schema)))) {
    if (!(await retryLockTimeouts(() => applyOne(db, schema, files, file)))) continue;
    applied.push(file.name);
    logger?.info({ schema: bare(schema), migration: file.name }, 'migration applied');
  }
  return applied;
}

/**
 * Applies all files to a new schema in one transaction, each as one message (in a cluster each statement): a fifth of
 * the round trips, and a failure leaves nothing behind. Returns false if another process created it while this one
 * waited for the lock.
 */
async function createWhole(db: Database, schema: Schema, files: Migration[]): Promise<boolean> {
  return db.transaction(async (tx) => {
    await lockMigrations(tx, schema);
    if ((await readJournal(tx, schema)) !== undefined) return false;
    await createSchema(tx, schema);
    for (const file of files) {
      const statements = statementsOf(db, file, schema);
      for (const text of db.sharded ? statements : [statements.join(';\n')]) await runStatement(tx, file, text);
    }
    const names = files.map((file) => file.name);
    const hashes = files.map((file) => file.hash);
    await runQuery(
      tx,
      `insert into ${schema}.migrations (name, hash) select name, hash from unnest(:names::text[], :hashes::text[]) as f(name, hash)`,
      { names, hashes },
    );
    return true;
  }, whole);
}

async function lockMigrations(tx: Queryable, schema: Schema): Promise<void> {
  await runQuery(tx, `select pg_advisory_xact_lock(hashtextextended(:lockName, 0))`, {
    lockName: `leasehold:migrate:${bare(schema)}`,
  });
  // Citus must not forward this setting to its nodes; plain Postgres accepts it as a custom one.
  await tx.query("set local citus.propagate_set_commands = 'local'");
  await tx.query(`set local lock_timeout = '${ddlLockTimeoutMs}ms'`);
}

/**
 * Applies one file in one transaction. Returns false if another process applied it while this one waited for the lock.
 */
async function applyOne(db: Database, schema: Schema, files: Migration[], file: Migration): Promise<boolean> {
  return db.transaction(async (tx) => {
    await lockMigrations(tx, schema);
    // Read in a statement after the lock, so that commits of other processes are visible.
    const journal = await readJournal(tx, schema);
    if (!pendingOf(schema, files, journal).includes(file)) return false;
    if (journal === undefined) await createSchema(tx, schema);
    for (const statement of statementsOf(db, file, schema)) await runStatement(tx, file, statement);
    await runQuery(tx, `insert into ${schema}.migrations (name, hash) values (:name, :hash)`, {
      name: file.name,
      hash: file.hash,
    });
    return true;
  }, whole);
}

function statementsOf(db: Database, file: Migration, schema: Schema): string[] {
  const statements = statementsFor(file, schema);
  return db.sharded ? statements.filter((statement) => !isRefusedByCitus(statement)) : statements;
}

// Schema, journal and first file commit together, so a schema of Leasehold always has a journal.
async function createSchema(tx: Queryable, schema: Schema): Promise<void> {
  if (schema !== controlSchema) await tx.query("select set_config('citus.enable_schema_based_sharding', 'on', true)");
  await tx.query(`create schema ${schema}`);
  await tx.query(
    `create table ${schema}.migrations (
       name text primary key,
       hash text not null,
       applied_at timestamptz not null default now()
     )`,
  );
}

async function runStatement(tx: Queryable, file: Migration, statement: string): Promise<void> {
  try {
    await tx.query(statement);
  } catch (error) {
    if (error instanceof Error) error.message = `migration ${file.name}: ${error.message}`;
    throw error;
  }
}

type Journal = Map<string, string>;

/**
 * Returns the journal as name → hash; undefined if the schema does not exist. Throws if Leasehold did not create it.
 */
async function readJournal(db: Queryable, schema: Schema): Promise<Journal | undefined> {
  // Not to_regnamespace(), whose cache may lack the commit of another session.
  const [found] = await runQuery<{ journal: boolean }>(
    db,
    `select exists (select from pg_catalog.pg_class c where c.relnamespace = n.oid and c.relname = 'migrations') as journal
       from pg_catalog.pg_namespace n where n.nspname = :schema`,
    { schema: bare(schema) },
  );
  if (!found) return undefined;
  if (!found.journal) {
    throw new MigrationError(
      `schema ${bare(schema)} exists but was not made by Leasehold (it has no migrations journal); it was left untouched`,
    );
  }
  const rows = await db.query<{ name: string; hash: string }>(`select name, hash from ${schema}.migrations`);
  return new Map(rows.map((row) => [row.name, row.hash]));
}

/**
 * Returns the files to apply. Entries that sort after our newest file were written by a newer version that runs at the
 * same time, and are tolerated; every other difference is refused by name.
 */
function pendingOf(schema: Schema, files: Migration[], journal: Journal = new Map()): Migration[] {
  for (const file of files) {
    const hash = journal.get(file.name);
    if (hash !== undefined && hash !== file.hash) {
      throw new MigrationError(`migration ${file.name} was edited after it was applied to schema ${bare(schema)}`);
    }
  }
  const newestFile = files.at(-1)?.name ?? '';
  const newestApplied = [...journal.keys()].sort().at(-1) ?? '';
  const unknown = [...journal.keys()].find((name) => name <= newestFile && !files.some((f) => f.name === name));
  if (unknown !== undefined) {
    throw new MigrationError(`schema ${bare(schema)} has migration ${unknown}, which this version does not know`);
  }
  const pending = files.filter((file) => !journal.has(file.name));
  const late = pending.find((file) => file.name < newestApplied);
  if (late !== undefined) {
    throw new MigrationError(
      `migration ${late.name} is out of order: schema ${bare(schema)} already has ${newestApplied}`,
    );
  }
  return pending;
}

async function retryLockTimeouts<T>(work: () => Promise<T>): Promise<T> {
  for (let attempt = 1; ; attempt++) {
    try {
      return await work();
    } catch (error) {
      if (sqlState(error) !== '55P03' || attempt >= lockAttempts) throw error;
      await new Promise((resolve) => setTimeout(resolve, (0.5 + Math.random()) * 200 * attempt));
    }
  }
}

function tenantOnly(schemaName: string): Schema {
  const schema = quoteSchema(schemaName);
  if (schema === controlSchema) throw new MigrationError('the control schema is not a tenant');
  return schema;
}

function bare(schema: Schema): string {
  return schema.slice(1, -1);
}
