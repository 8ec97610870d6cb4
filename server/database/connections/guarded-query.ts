// Sends a statement after the statements that guard it or set its limits, in one transaction and one flight, without
// BEGIN and COMMIT. The server begins the transaction with the first statement and commits it at the Sync message after
// the last. If a guard fails, the server refuses the rest.
import pg from 'pg';

/** The protocol methods of the driver's query, which its types omit. */
interface Protocol {
  parse(statement: { name: string; text: string }): void;
  bind(portal: { statement: string; values: unknown[] }): void;
  execute(portal: { portal: string }): void;
}

interface DriverQuery {
  prepare(connection: Protocol): void;
  handleDataRow(message: unknown): void;
  handleCommandComplete(message: unknown, connection: Protocol): void;
  callback: (error: unknown, result: unknown) => void;
}

/** A statement without values. If it has a name, it is prepared already. */
export interface GuardStatement {
  name: string | undefined;
  text: string;
}

const BaseQuery = pg.Query as unknown as new (config: pg.QueryConfig & { queryMode: 'extended' }) => DriverQuery;

export class GuardedQuery<R extends object> extends BaseQuery {
  readonly #guard: GuardStatement[];
  #guardsLeft: number;
  readonly result: Promise<pg.QueryResult<R>>;

  constructor(guard: GuardStatement[], config: pg.QueryConfig) {
    super({ ...config, queryMode: 'extended' });
    this.#guard = guard;
    this.#guardsLeft = guard.length;
    this.result = new Promise((resolve, reject) => {
      this.callback = (error, result) => (error ? reject(error) : resolve(result as pg.QueryResult<R>));
    });
  }

  /** False if the guard failed. */
  get hasPassed(): boolean {
    return this.#guardsLeft === 0;
  }

  override prepare(connection: Protocol): void {
    for (const { name = '', text } of this.#guard) {
      if (name === '') connection.parse({ name, text });
      connection.bind({ statement: name, values: [] });
      connection.execute({ portal: '' });
    }
    super.prepare(connection);
  }

  override handleDataRow(message: unknown): void {
    if (this.hasPassed) super.handleDataRow(message);
  }

  override handleCommandComplete(message: unknown, connection: Protocol): void {
    if (this.hasPassed) super.handleCommandComplete(message, connection);
    else this.#guardsLeft -= 1;
  }
}
