// Reads the files that drizzle-kit wrote: in journal order, with their hashes and their statements for one schema. Does
// not access the database.
import { createHash } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { packageRoot } from '../../kernel/environment.ts';
import { controlSchema, quoteSchema, type Schema } from '../identifiers.ts';

export interface Migration {
  name: string;
  hash: string;
  sql: string;
}

export type MigrationSet = 'control' | 'tenant';

// The schema's name in the table definitions, and therefore in everything that drizzle-kit writes.
const placeholder = 'tenant_template';

export function migrationsDirectory(set: MigrationSet): string {
  return join(packageRoot(), 'migrations', set);
}

/** All migrations of a directory, oldest first. */
export async function readMigrations(directory: string): Promise<Migration[]> {
  const journal: { entries: { idx: number; tag: string }[] } = JSON.parse(
    await readFile(join(directory, 'meta', '_journal.json'), 'utf8'),
  );
  const entries = [...journal.entries].sort((a, b) => a.idx - b.idx);
  return Promise.all(entries.map(async ({ tag }) => readMigration(directory, tag)));
}

async function readMigration(directory: string, name: string): Promise<Migration> {
  // A checkout with other line ends is the same migration.
  const sql = (await readFile(join(directory, `${name}.sql`), 'utf8')).replaceAll('\r\n', '\n');
  return { name, hash: createHash('sha256').update(sql).digest('hex'), sql };
}

/** The statements of a migration for one schema, without its CREATE SCHEMA (the runner's own step). */
export function statementsFor(migration: Migration, schema: Schema): string[] {
  const target = schema === controlSchema ? migration.sql : replacePlaceholder(migration, schema);
  return target
    .split('--> statement-breakpoint')
    .map((statement) => statement.trim())
    .filter((statement) => statement !== '' && !/^CREATE SCHEMA "[^"]+";?$/i.test(statement));
}

/**
 * Statements that Citus refuses and that change only how values are stored. A cluster omits them, because a file that
 * was applied somewhere cannot be edited.
 */
export function isRefusedByCitus(statement: string): boolean {
  const text = statement.replace(/^--.*\n/gm, '').trim();
  return /^ALTER TABLE \S+ ALTER COLUMN \S+ SET STORAGE \w+;?$/i.test(text);
}

function replacePlaceholder(migration: Migration, schema: Schema): string {
  const parts = migration.sql.split(quoteSchema(placeholder));
  // An unquoted placeholder would be left in place and touch a schema that is not this tenant's.
  if (parts.some((part) => part.includes(placeholder))) {
    throw new Error(`migration ${migration.name} names ${placeholder} without quotes`);
  }
  return parts.join(schema);
}
