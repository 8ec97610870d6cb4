// Prepared statements of one connection: frequent texts are parsed once. Bounded, because every tenant has its own
// texts; and only on a direct connection, because a pooler in transaction mode may send each statement to another
// server process.
import type pg from 'pg';

// Each takes about 100 kB in the server process.
const maxNamed = 50;
const maxSeen = 200;
const usesBeforeNaming = 3;

export class Statements {
  readonly #client: pg.PoolClient;
  readonly #names = new Map<string, string>();
  readonly #seen = new Map<string, number>();
  /** Whether the server process stays the same, so that it keeps the names. */
  readonly direct: boolean;
  #count = 0;

  constructor(client: pg.PoolClient, direct: boolean) {
    this.#client = client;
    this.direct = direct;
  }

  /** Sends it at once, prepared if it is frequent. */
  query<R extends object>(text: string, values: unknown[]): Promise<pg.QueryResult<R>> {
    const name = this.direct ? this.#nameOf(text) : undefined;
    return this.#client.query<R>(name === undefined ? { text, values } : { name, text, values });
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
    const { connection } = this.#client as unknown as { connection: { parsedStatements: Record<string, string> } };
    // If the server refused it, it does not know the name and DEALLOCATE would fail.
    if (connection.parsedStatements[name] === undefined) return;
    delete connection.parsedStatements[name];
    // Sent before the statement that replaces it.
    this.#client.query(`deallocate ${name}`).catch(() => {});
  }
}
