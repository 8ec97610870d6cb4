// The prepared statements of one connection, so that frequent texts are parsed once. Their number is bounded, because
// every tenant has its own texts. Behind a pooler in transaction mode there are none, unless the pooler keeps them: it
// may send each statement to another server process.
import type pg from 'pg';
import { Flight } from './flight.ts';
import { closeStatement } from './statement-names.ts';

// Each takes about 100 kB in the server process.
const maxNamed = 50;
const maxSeen = 200;
const usesBeforeNaming = 3;

/**
 * How a statement is kept on its connection. `prepared`: it is parsed once. `keepPlan`: it is also planned once, which
 * pays off for statements that find their rows by a key. Within a transaction both are the same: it decides for all of
 * its statements whether their plans are kept.
 */
export type Reuse = 'prepared' | 'keepPlan';

// A kept plan must be good for a table of any size; a plan made for a small table would scan a large one.
const keptPlans = { plan_cache_mode: 'force_generic_plan', enable_seqscan: 'off', enable_bitmapscan: 'off' };
const keepPlansQuery = setConfig(keptPlans);
/** The facts of the session; see session-limits.ts. */
const planAnewQuery = setConfig({
  plan_cache_mode: 'force_custom_plan',
  enable_seqscan: 'on',
  enable_bitmapscan: 'on',
});

function setConfig(settings: Record<string, string>): string {
  const calls = Object.entries(settings).map(([name, value]) => `set_config('${name}', '${value}', false)`);
  return `select ${calls.join(', ')}`;
}

/** The driver's records of named statements, answered and sent, which its types omit. */
interface DriverConnection {
  parsedStatements: Record<string, string>;
  submittedNamedStatements: Record<string, string>;
}

export interface TogetherStatement {
  text: string;
  values: unknown[];
  reuse: Reuse | undefined;
}

export class Statements {
  readonly #client: pg.PoolClient;
  readonly #names = new Map<string, string>();
  readonly #seen = new Map<string, number>();
  /** True if the server process stays the same, and with it what is set in its session. */
  readonly direct: boolean;
  /** True if names are kept: by the server process, or by the pooler. */
  readonly keepsNames: boolean;
  /** Citus needs the values to choose the node. */
  readonly mayKeepPlans: boolean;
  #count = 0;
  #keepsPlans = false;

  constructor(client: pg.PoolClient, facts: { direct: boolean; keepsNames: boolean; sharded: boolean }) {
    this.#client = client;
    this.direct = facts.direct;
    this.keepsNames = facts.direct || facts.keepsNames;
    this.mayKeepPlans = this.keepsNames && !facts.sharded;
  }

  /** Sends the statement at once, prepared if it is frequent. */
  query<R extends object>(text: string, values: unknown[], reuse: Reuse | undefined): Promise<pg.QueryResult<R>> {
    const config = this.#configOf(text, values, reuse);
    return this.#named(config, this.#client.query<R>(config));
  }

  /** Sends a statement of a transaction. */
  queryWithin<R extends object>(text: string, values: unknown[], reuse: Reuse | undefined): Promise<pg.QueryResult<R>> {
    const config = namedIf(reuse && this.#nameOf(text), text, values);
    return this.#named(config, this.#client.query<R>(config));
  }

  /** Sends the statement after the guard, in one transaction with it. */
  queryGuarded(guard: readonly string[], text: string, values: unknown[], reuse: Reuse | undefined): Flight {
    return this.#fly([...guard.map((each) => this.#fixed(each)), this.#configOf(text, values, reuse)]);
  }

  /** Sends the statements after the guard, as one transaction whose plans are kept. */
  queryTogether(guard: readonly string[], statements: readonly TogetherStatement[]): Flight {
    this.keepPlans();
    return this.#fly([
      ...guard.map((each) => this.#fixed(each)),
      ...statements.map(({ text, values, reuse }) => namedIf(reuse && this.#nameOf(text), text, values)),
    ]);
  }

  #fly(configs: pg.QueryConfig[]): Flight {
    const flight = new Flight(configs);
    this.#client.query(flight as unknown as pg.Submittable);
    for (const config of configs) this.#named(config, flight.results).catch(() => {});
    return flight;
  }

  /** A frequent statement without values. Postgres keeps its plan in any case. */
  queryFixed(text: string): Promise<unknown> {
    const config = this.#fixed(text);
    return this.#named(config, this.#client.query(config));
  }

  /** Behind a pooler, what is set in the transaction of a statement, because nothing may be set for a session. */
  planSettings(reuse: Reuse | undefined): Record<string, string> {
    if (this.direct || !this.keepsNames || reuse === undefined) return {};
    return reuse === 'keepPlan' && this.mayKeepPlans ? keptPlans : { plan_cache_mode: 'force_custom_plan' };
  }

  #fixed(text: string): pg.QueryConfig {
    return namedIf(this.#nameOf(text), text, []);
  }

  /** A pooler does not accept a name again if the server did not parse its statement: the text gets another name. */
  #named<T>({ name, text }: pg.QueryConfig, answer: Promise<T>): Promise<T> {
    if (this.direct || name === undefined) return answer;
    return answer.catch((error: unknown) => {
      if (!this.#isSent(name) && this.#names.get(text) === name) this.#names.delete(text);
      throw error;
    });
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
    const name = reuse === undefined ? undefined : this.#nameOf(text);
    if (name !== undefined && reuse === 'keepPlan') this.keepPlans();
    else this.planAnew();
    return namedIf(name, text, values);
  }

  /** The following statements are planned once, for any values. */
  keepPlans(): void {
    if (!this.direct || !this.mayKeepPlans || this.#keepsPlans) return;
    this.#keepsPlans = true;
    this.#set(keepPlansQuery);
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
    if (!this.keepsNames) return undefined;
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
    delete parsedStatements[name];
    // Sent before the statement that replaces it.
    closeStatement(this.#client, name);
  }
}

function namedIf(name: string | undefined, text: string, values: unknown[]): pg.QueryConfig {
  return name === undefined ? { text, values } : { name, text, values };
}
