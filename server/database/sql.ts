// Statements with named parameters. A statement is written once, over the placeholder schema, with `:leaseId` in place
// of a value. It is compiled to `$n` when it is created. A call only inserts the tenant's schema and orders the values,
// so nothing is kept per tenant.
import type { Reuse } from './connections/prepared-statements.ts';
import { quoteSchema, type Schema } from './identifiers.ts';

/** The placeholder for the tenant's schema in the text of a statement, as in the drizzle tables. */
export const tenant: Schema = quoteSchema('tenant_template');

/** What runs statements: the database, a tenant's view of it, or a transaction. */
export interface Queryable {
  query<R extends object = Record<string, unknown>>(text: string, values?: unknown[], reuse?: Reuse): Promise<R[]>;
}

export type Parameters = Readonly<Record<string, unknown>>;

export interface BoundStatement {
  text: string;
  values: unknown[];
}

export class Statement {
  /** In the order of their numbers: `names[0]` is `$1`. */
  readonly names: readonly string[];
  readonly #known: ReadonlySet<string>;
  readonly #parts: readonly string[];

  constructor(source: string) {
    const { text, names } = compile(source);
    this.names = names;
    this.#known = new Set(names);
    this.#parts = text.split(tenant);
  }

  uses(name: string): boolean {
    return this.#known.has(name);
  }

  text(schema: Schema): string {
    return this.#parts.join(schema);
  }

  /** An undefined parameter counts as missing; SQL null is `null`. */
  values(parameters: Parameters): unknown[] {
    for (const name in parameters) {
      if (parameters[name] !== undefined && !this.#known.has(name)) throw new Error(`unknown SQL parameter :${name}`);
    }
    return orderValues(this.names, parameters);
  }

  bind(schema: Schema, parameters: Parameters): BoundStatement {
    return { text: this.text(schema), values: this.values(parameters) };
  }

  query<R extends object = Record<string, unknown>>(
    db: Queryable,
    schema: Schema,
    parameters: Parameters,
    reuse?: Reuse,
  ): Promise<R[]> {
    return db.query<R>(this.text(schema), this.values(parameters), reuse);
  }
}

/** An undefined value would be sent as null, so it does not compile. */
type DefinedParameters = Readonly<Record<string, NonNullable<unknown> | null>>;

/**
 * Runs a statement that is compiled at each call: for statements that run rarely, or whose text depends on the call.
 * Such a text has the schema itself in place of the placeholder.
 */
export function runQuery<R extends object = Record<string, unknown>>(
  db: Queryable,
  source: string,
  parameters: DefinedParameters,
  reuse?: Reuse,
): Promise<R[]> {
  const { text, values } = bindParameters(source, parameters);
  return db.query<R>(text, values, reuse);
}

/** As `runQuery`, for clients of the driver. */
export function bindParameters(source: string, parameters: DefinedParameters): BoundStatement {
  const { text, names } = compile(source);
  for (const name in parameters) if (!names.includes(name)) throw new Error(`unknown SQL parameter :${name}`);
  return { text, values: orderValues(names, parameters) };
}

// Sources are constants of the code and their variants, a few hundred at most.
const compiled = new Map<string, Statement>();

/** Returns the statement of this source, compiled at the first call. */
export function statement(source: string): Statement {
  let known = compiled.get(source);
  if (known === undefined) {
    known = new Statement(source);
    compiled.set(source, known);
  }
  return known;
}

/** Creates one statement for each variant of a text. `V` has only booleans and short names. */
export function statementVariants<V extends object>(render: (variant: V) => string): (variant: V) => Statement {
  const known = new Map<string, Statement>();
  return (variant) => {
    const key = Object.entries(variant).join();
    let found = known.get(key);
    if (found === undefined) {
      found = statement(render(variant));
      known.set(key, found);
    }
    return found;
  };
}

function orderValues(names: readonly string[], parameters: Parameters): unknown[] {
  return names.map((name) => {
    const value = parameters[name];
    if (value === undefined) throw new Error(`missing SQL parameter :${name}`);
    return value;
  });
}

// Skips casts, strings, quoted names and comments.
const tokens = /::|'(?:[^']|'')*'|"[^"]*"|--[^\n]*|:([a-zA-Z_]\w*)/g;

function compile(source: string): { text: string; names: string[] } {
  const names: string[] = [];
  const text = source.replace(tokens, (token, name: string | undefined) => {
    if (name === undefined) return token;
    if (!names.includes(name)) names.push(name);
    return `$${names.indexOf(name) + 1}`;
  });
  return { text: withoutBlankLines(text), names };
}

/** Removes the empty lines of fragments that a variant leaves out. */
function withoutBlankLines(text: string): string {
  return text
    .split('\n')
    .map((line) => line.trimEnd())
    .filter((line) => line !== '')
    .join('\n');
}
