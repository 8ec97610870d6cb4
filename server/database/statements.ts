// Named statements of one connection: what is sent often is parsed once. Bounded, because every
// tenant has its own texts; and only on a connection of our own, because a pooler in transaction mode
// hands each statement to another server process.
import type pg from 'pg';

// A server process keeps some 100 kB for each.
const mostNamed = 50;
const mostSeen = 200;
const usesBeforeNaming = 3;

export class Statements {
  readonly #client: pg.PoolClient;
  readonly #names = new Map<string, string>();
  readonly #seen = new Map<string, number>();
  #direct: boolean | undefined;
  #asking: Promise<void> | undefined;
  #count = 0;

  constructor(client: pg.PoolClient) {
    this.#client = client;
  }

  /** To be waited for before a query, if it is anything; the server is asked once. */
  ready(): Promise<void> | undefined {
    if (this.#direct !== undefined) return undefined;
    this.#asking ??= this.#findOut().finally(() => {
      this.#asking = undefined;
    });
    return this.#asking;
  }

  /** What others wait for: whoever comes after them waits too, and keeps behind them. */
  get asking(): Promise<void> | undefined {
    return this.#asking;
  }

  /** Whether what is named here is known there; not before `ready`. */
  get direct(): boolean {
    return this.#direct === true;
  }

  /** Sends it at once, under a name if it is worth one. */
  query<R extends object>(text: string, values: unknown[]): Promise<pg.QueryResult<R>> {
    const name = this.#direct ? this.#nameOf(text) : undefined;
    return this.#client.query<R>(name === undefined ? { text, values } : { name, text, values });
  }

  /** A transaction was rolled back, and with it what was set in it. */
  rolledBack(): void {
    this.#direct = undefined;
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
    if (this.#names.size >= mostNamed) this.#forgetOldest();
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
    if (this.#seen.size > mostSeen) this.#seen.delete(this.#seen.keys().next().value as string);
    return false;
  }

  #forgetOldest(): void {
    const [text, name] = this.#names.entries().next().value as [string, string];
    this.#names.delete(text);
    const { connection } = this.#client as unknown as { connection: { parsedStatements: Record<string, string> } };
    // Where it was refused, the server does not know the name, and asking to forget it would fail.
    if (connection.parsedStatements[name] === undefined) return;
    delete connection.parsedStatements[name];
    // It goes before the statement that takes its place.
    this.#client.query(`deallocate ${name}`).catch(() => {});
  }

  /**
   * Behind a pooler the process that answers is not the one that greeted. Where it is, mostly only parsing is
   * saved: a plan that is kept goes on reading the whole of a table that was small when it was made, and
   * tries the locks of lanes before it looks whether their jobs are wanted.
   */
  async #findOut(): Promise<void> {
    const { processID } = this.#client as unknown as { processID: number };
    const text = `select pid = $1 as direct, case when pid = $1 then set_config('plan_cache_mode', 'force_custom_plan', false) end
                    from (select pg_backend_pid() as pid) as p`;
    const { rows } = await this.#client.query<{ direct: boolean }>(text, [processID]);
    this.#direct = rows[0]?.direct === true;
  }
}

/** The server does not know the name any more, or what it stands for has changed: nothing was done. */
export function isStatementGone(error: unknown): boolean {
  if (!(error instanceof Error) || !('code' in error)) return false;
  return error.code === '26000' || (error.code === '0A000' && error.message.includes('cached plan'));
}
