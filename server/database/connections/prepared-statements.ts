// The prepared statements of one connection, so that frequent texts are parsed once. Their number is bounded, because
// every tenant has its own texts. Only direct connections have them, because a pooler in transaction mode may send each
// statement to another server process.
import type pg from 'pg';
import { GuardedQuery, type GuardStatement } from './guarded-query.ts';

// Each takes about 100 kB in the server process.
const maxNamed = 50;
const maxSeen = 200;
const usesBeforeNaming = 3;

/**
 * How a statement is kept on its connection. `prepared`: it is parsed once. `keepPlan`: it is also planned once, which
 * pays off for statements that find their rows by a key. Within a transaction `keepPlan` is the same as `prepared`.
 */
export type Reuse = 'prepared' | 'keepPlan';

/** A kept plan must be good for a table of any size; a plan made for a small table would scan a large one. */
export function keepPlans(during: 'session' | 'transaction'): string {
  return setConfig({ plan_cache_mode: 'force_generic_plan', enable_seqscan: 'off', enable_bitmapscan: 'off' }, during);
}

/** The facts of the session; see session-limits.ts. */
const planAnewQuery = setConfig(
  { plan_cache_mode: 'force_custom_plan', enable_seqscan: 'on', enable_bitmapscan: 'on' },
  'session',
);

function setConfig(settings: Record<string, string>, during: 'session' | 'transaction'): string {
  const calls = Object.entries(settings).map(
    ([name, value]) => `set_config('${name}', '${value}', ${during === 'transaction'})`,
  );
  return `select ${calls.join(', ')}`;
}

/** The driver's records of named statements, answered and sent, which its types omit. */
interface DriverConnection {
  parsedStatements: Record<string, string>;
  submittedNamedStatements: Record<string, string>;
}

export class Statements {
  readonly #client: pg.PoolClient;
  readonly #names = new Map<string, string>();
  readonly #seen = new Map<string, number>();
  /** True if the server process stays the same and keeps the names. */
  readonly direct: boolean;
  /** Citus needs the values to choose the node. */
  readonly mayKeepPlans: boolean;
  #count = 0;
  #keepsPlans = false;

  constructor(client: pg.PoolClient, { direct, sharded }: { direct: boolean; sharded: boolean }) {
    this.#client = client;
    this.direct = direct;
    this.mayKeepPlans = direct && !sharded;
  }

  /** Sends the statement at once, prepared if it is frequent. */
  query<R extends object>(text: string, values: unknown[], reuse: Reuse | undefined): Promise<pg.QueryResult<R>> {
    return this.#client.query<R>(this.#configOf(text, values, reuse));
  }

  /** Sends the statement after the guard, in one transaction with it. */
  queryGuarded<R extends object>(
    guard: string[],
    text: string,
    values: unknown[],
    reuse: Reuse | undefined,
  ): GuardedQuery<R> {
    const config = this.#configOf(text, values, reuse);
    const query = new GuardedQuery<R>(
      guard.map((each) => this.#guardStatement(each)),
      config,
    );
    this.#client.query(query as unknown as pg.Submittable);
    return query;
  }

  /** A frequent statement without values. Postgres keeps its plan in any case. */
  queryFixed(text: string): Promise<unknown> {
    return this.#client.query(namedIf(this.direct ? this.#nameOf(text) : undefined, text, []));
  }

  #guardStatement(text: string): GuardStatement {
    const name = this.direct ? this.#nameOf(text) : undefined;
    // Sending the statement prepares it; its answer is ignored here.
    if (name !== undefined && !this.#isSent(name)) this.#client.query({ name, text }).catch(() => {});
    return { name, text };
  }

  /** The server knows the name, or will before the next message, unless it refused the statement. */
  #isSent(name: string): boolean {
    const { parsedStatements, submittedNamedStatements } = this.#driverConnection;
    return parsedStatements[name] !== undefined || submittedNamedStatements[name] !== undefined;
  }

  get #driverConnection(): DriverConnection {
    return (this.#client as unknown as { connection: DriverConnection }).connection;
  }

  #configOf(text: string, values: unknown[], reuse: Reuse | undefined): pg.QueryConfig {
    const name = this.direct && reuse !== undefined ? this.#nameOf(text) : undefined;
    this.#planFor(name, reuse);
    return namedIf(name, text, values);
  }

  #planFor(name: string | undefined, reuse: Reuse | undefined): void {
    if (name === undefined || reuse !== 'keepPlan' || !this.mayKeepPlans) this.planAnew();
    else if (!this.#keepsPlans) {
      this.#keepsPlans = true;
      this.#set(keepPlans('session'));
    }
  }

  /** The following statements are planned for their values. */
  planAnew(): void {
    if (!this.#keepsPlans) return;
    this.#keepsPlans = false;
    this.#set(planAnewQuery);
  }

  /** Sent before the statement that needs it. If it fails, the connection is broken and that statement fails too. */
  #set(text: string): void {
    this.#client.query(text).catch(() => {});
  }

  #nameOf(text: string): string | undefined {
    const known = this.#names.get(text);
    if (known !== undefined) {
      // The least recently used comes first.
      this.#names.delete(text);
      this.#names.set(text, known);
      return known;
    }
    if (!this.#isFrequent(text)) return undefined;
    if (this.#names.size >= maxNamed) this.#forgetOldest();
    this.#count += 1;
    const name = `lh_${this.#count}`;
    this.#names.set(text, name);
    return name;
  }

  #isFrequent(text: string): boolean {
    const uses = (this.#seen.get(text) ?? 0) + 1;
    this.#seen.delete(text);
    if (uses >= usesBeforeNaming) return true;
    this.#seen.set(text, uses);
    if (this.#seen.size > maxSeen) this.#seen.delete(this.#seen.keys().next().value as string);
    return false;
  }

  #forgetOldest(): void {
    const [text, name] = this.#names.entries().next().value as [string, string];
    this.#names.delete(text);
    const { parsedStatements } = this.#driverConnection;
    // If the server refused the statement, it does not know the name, and DEALLOCATE would fail.
    if (parsedStatements[name] === undefined) return;
    delete parsedStatements[name];
    // Sent before the statement that replaces it.
    this.#client.query(`deallocate ${name}`).catch(() => {});
  }
}

function namedIf(name: string | undefined, text: string, values: unknown[]): pg.QueryConfig {
  return name === undefined ? { text, values } : { name, text, values };
}
