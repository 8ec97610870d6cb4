// Reads through drizzle's query builder over server/database/tables, the one list of columns. A read is built once, over
// the placeholder schema of the tables; a call only inserts the tenant's schema and the values, so nothing is kept per
// tenant. drizzle builds the text and no more: the driver's values stay as they are (times as ISO text with
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
import type { Reuse } from './connections/prepared-statements.ts';
import type { Queryable } from './database.ts';
import type { Schema } from './identifiers.ts';
import { tenantTemplate } from './tables/columns.ts';

/** Starts a select: `build.select(columnsOf(schedules)).from(schedules)`. */
export const build = new QueryBuilder();

export type RowOf<T extends Table> = T['$inferSelect'];

/** Every column under its name in the code: `"job_id" as "jobId"`. Leave some out by destructuring. */
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

/** A select as the builder leaves it. */
interface Built<R> {
  readonly _: { readonly result: R };
  toSQL(): Query;
}

type Placeholders<A> = { [K in keyof A]: Placeholder<K & string, A[K]> };

export interface Read<A, R extends object> {
  (db: Queryable, schema: Schema, given: A): Promise<R[]>;
  /** Text and values of a call, for a statement around this one. */
  bind(schema: Schema, given: A): { text: string; values: unknown[] };
}

/**
 * Defines a read. Its values are placeholders while it is built:
 * `defineRead<{ id: string }>()(({ id }) => build.select(columnsOf(schedules)).from(schedules).where(eq(schedules.id, id)))`.
 */
export function defineRead<A extends object>(reuse?: Reuse) {
  return <R extends object>(make: (given: Placeholders<A>) => Built<R[]>): Read<A, R> => {
    // At the first call: a process that never reads the table does not pay for it.
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

/** The only place where a tenant's schema takes the place of the tables' placeholder. */
const templatePrefix = `"${tenantTemplate.schemaName}".`;

const placeholders = new Proxy({}, { get: (_, name) => sql.placeholder(String(name)) });
