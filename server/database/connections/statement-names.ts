// Named statements in the protocol: closes one, and finds out whether a pooler keeps them. Such a pooler (PgBouncer
// from 1.21 on, with max_prepared_statements) replaces each name by one of its own and prepares the statement on
// whatever server process it chooses.
import { randomUUID } from 'node:crypto';
import pg from 'pg';

/** The protocol methods of the driver's query and connection, which its types omit. */
interface Protocol {
  parse(statement: { name: string; text: string }): void;
  bind(portal: { statement: string; values: unknown[] }): void;
  describe(portal: { type: 'P'; name: string }): void;
  execute(portal: { portal: string }): void;
  close(statement: { type: 'S'; name: string }): void;
  sync(): void;
}

type Callback = (error: unknown, result: unknown) => void;

const BaseQuery = pg.Query as unknown as new (
  config: pg.QueryConfig & { queryMode: 'extended' },
  callback: Callback,
) => object;

/** The server or the pooler forgets the name. It is no error if neither knows it. */
class CloseStatement extends BaseQuery {
  readonly #name: string;

  constructor(name: string) {
    super({ text: '', queryMode: 'extended' }, () => {});
    this.#name = name;
  }

  prepare(connection: Protocol): void {
    connection.close({ type: 'S', name: this.#name });
    connection.sync();
  }
}

/** Sent before the next statement; the answer is not awaited. */
export function closeStatement(client: pg.ClientBase, name: string): void {
  client.query(new CloseStatement(name) as unknown as pg.Submittable);
}

/** A named statement that is closed again in the same flight, so that it is on one server process only. */
class ProbeStatement extends BaseQuery {
  readonly #statement: { name: string; text: string };

  constructor(statement: { name: string; text: string }, callback: Callback) {
    super({ text: statement.text, queryMode: 'extended' }, callback);
    this.#statement = statement;
  }

  prepare(connection: Protocol): void {
    const { name } = this.#statement;
    connection.parse(this.#statement);
    connection.bind({ statement: name, values: [] });
    connection.describe({ type: 'P', name: '' });
    connection.execute({ portal: '' });
    connection.close({ type: 'S', name });
    connection.sync();
  }
}

/**
 * Returns true if the pooler of this connection keeps named statements: the statement, which reads the names of the
 * server process, does not find its own. A pooler that passes names on would send the next use to a process that does
 * not know them.
 */
export async function keepsNames(client: pg.ClientBase): Promise<boolean> {
  const name = `lh_${randomUUID()}`;
  const text = `select name from pg_catalog.pg_prepared_statements where statement like '%${name.slice(3)}%'`;
  const { rows } = await new Promise<pg.QueryResult<{ name: string }>>((resolve, reject) => {
    const query = new ProbeStatement({ name, text }, (error, result) =>
      error ? reject(error) : resolve(result as pg.QueryResult<{ name: string }>),
    );
    client.query(query as unknown as pg.Submittable);
  });
  return rows.length > 0 && rows.every((row) => row.name !== name);
}
