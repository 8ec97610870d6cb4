// Reads through drizzle's query builder over server/database/tables, the only list of columns. A read is built once,
// over the placeholder schema of the tables. A call only inserts the tenant's schema and the values, so nothing is kept
// per tenant. drizzle builds only the text: values stay as the driver returns them (times as ISO text with
// microseconds, bigint as text), as in hand-written statements.
import {
  type Column,
  fillPlaceholders,
  getTableColumns,
  type Placeholder,
  type Query,
  type SQL,
  sql,
  type Table,
} from 'drizzle-orm';
import { QueryBuilder } from 'drizzle-orm/pg-core';
import type { Reuse } from '../connections/prepared-statements.ts';
import type { Queryable } from '../database.ts';
import type { Schema } from '../identifiers.ts';
import { tenantTemplate } from '../tables/columns.ts';

/** Starts a select: `build.select(columnsOf(schedules)).from(schedules)`. */
export const build = new QueryBuilder();

export type RowOf<T extends Table> = T['$inferSelect'];

/** All columns under their names in the code: `"job_id" as "jobId"`. Leave some out by destructuring. */
export function columnsOf<T extends Table>(table: T): { [K in keyof RowOf<T>]: SQL.Aliased<RowOf<T>[K]> } {
  const columns = Object.entries(getTableColumns(table)) as [string, Column][];
  return Object.fromEntries(columns.map(([key, column]) => [key, sql`${column}`.as(key)])) as ReturnType<
    typeof columnsOf<T>
  >;
}

/** The same as text, for hand-written statements: `id, job_id as "jobId"`, with an alias `o.id, o.job_id as "jobId"`. */
export function columnList(table: Table, selection: object, alias = ''): string {
  const columns = getTableColumns(table) as Record<string, Column>;
  const prefix = alias === '' ? '' : `${alias}.`;
  const nameOf = (key: string) => (columns[key] as Column).name;
  return Object.keys(selection)
    .map((key) => prefix + (nameOf(key) === key ? key : `${nameOf(key)} as "${key}"`))
    .join(', ');
}

/** A select that the builder has finished. */
interface Built<R> {
  readonly _: { readonly result: R };
  toSQL(): Query;
}

type Placeholders<A> = { [K in keyof A]: Placeholder<K & string, A[K]> };

export interface Read<A, R extends object> {
  (db: Queryable, schema: Schema, given: A): Promise<R[]>;
  /** The text and values of a call, for use inside another statement. */
  bind(schema: Schema, given: A): { text: string; values: unknown[] };
}

/**
 * Defines a read. Its values are placeholders while it is built:
 * `defineRead<{ id: string }>()(({ id }) => build.select(columnsOf(schedules)).from(schedules).where(eq(schedules.id, id)))`.
 */
export function defineRead<A extends object>(reuse?: Reuse) {
  return <R extends object>(make: (given: Placeholders<A>) => Built<R[]>): Read<A, R> => {
    // Built at the first call, so that a process that never reads the table pays nothing.
    let built: Query | undefined;
    const bind = (schema: Schema, given: A) => {
      built ??= make(placeholders as Placeholders<A>).toSQL();
      const text = built.sql.replaceAll(templatePrefix, `${schema}.`);
      return { text, values: fillPlaceholders(built.params, given as Record<string, unknown>) };
    };
    const read = (db: Queryable, schema: Schema, given: A) => {
      const { text, values } = bind(schema, given);
      return db.query<R>(text, values, reuse);
    };
    return Object.assign(read, { bind });
  };
}

/** The only place that replaces the placeholder schema with a tenant's schema. */
const templatePrefix = `"${tenantTemplate.schemaName}".`;

const placeholders = new Proxy({}, { get: (_, name) => sql.placeholder(String(name)) });
