// Sends several statements in one message and one transaction, without BEGIN and COMMIT. The server begins the
// transaction with the first statement and commits it at the Sync message after the last. If one fails, it refuses the
// rest and rolls back. In READ COMMITTED each statement has a snapshot of its own, as between BEGIN and COMMIT.
import pg from 'pg';

/** The members of the driver's query and connection that its types omit. */
interface DriverConnection {
  submittedNamedStatements: Record<string, string>;
  _send(message: Buffer): void;
  sync(): void;
}

interface DriverQuery {
  name?: string | undefined;
  text: string;
  callback: (error: unknown, result: unknown) => void;
  _result: { _types: unknown };
  prepare(connection: DriverConnection): void;
  handleRowDescription(message: unknown): void;
  handleDataRow(message: unknown): void;
  handleCommandComplete(message: unknown, connection: DriverConnection): void;
  handleReadyForQuery(connection: DriverConnection): void;
  handleError(error: unknown, connection: DriverConnection): void;
}

const BaseQuery = pg.Query as unknown as new (config: pg.QueryConfig & { queryMode: 'extended' }) => DriverQuery;

export class Flight extends BaseQuery {
  readonly #statements: DriverQuery[];
  #answered = 0;
  #error: unknown;
  /** The results of the statements, after the commit. */
  readonly results: Promise<pg.QueryResult[]>;

  constructor(statements: readonly pg.QueryConfig[]) {
    super({ text: '', queryMode: 'extended' });
    const results: pg.QueryResult[] = [];
    this.#statements = statements.map((config) => {
      const statement = new BaseQuery({ ...config, queryMode: 'extended' });
      statement.callback = (error, result) => {
        if (error) this.#error ??= error;
        else results.push(result as pg.QueryResult);
      };
      return statement;
    });
    this.results = new Promise((resolve, reject) => {
      this.callback = (error) => (error ? reject(error) : resolve(results));
    });
    this.#showCurrent();
  }

  /** The number of statements that have succeeded, even if a later one failed. */
  get answered(): number {
    return this.#answered;
  }

  /** Nothing is sent before all values are encoded: the server would commit the statements before one that cannot be. */
  override prepare(connection: DriverConnection): void {
    const messages: Buffer[] = [];
    const collector: DriverConnection = Object.create(connection, {
      _send: { value: (message: Buffer) => messages.push(message) },
      sync: { value: () => {} },
    });
    const submitted = { ...connection.submittedNamedStatements };
    for (const statement of this.#statements) {
      statement._result._types = this._result._types;
      statement.prepare(collector);
    }
    if (this.#error === undefined) for (const message of messages) connection._send(message);
    else connection.submittedNamedStatements = submitted;
    connection.sync();
  }

  override handleRowDescription(message: unknown): void {
    this.#current?.handleRowDescription(message);
  }

  override handleDataRow(message: unknown): void {
    this.#current?.handleDataRow(message);
  }

  override handleCommandComplete(message: unknown, connection: DriverConnection): void {
    this.#current?.handleCommandComplete(message, connection);
    this.#answered += 1;
    this.#showCurrent();
  }

  override handleReadyForQuery(connection: DriverConnection): void {
    // A row that could not be parsed is reported here.
    if (this.#error === undefined) for (const statement of this.#statements) statement.handleReadyForQuery(connection);
    this.callback(this.#error, undefined);
  }

  /** The server has parsed none of the statements after the one that failed. */
  override handleError(error: unknown, connection: DriverConnection): void {
    for (const { name } of this.#statements.slice(this.#answered)) {
      if (name !== undefined) delete connection.submittedNamedStatements[name];
    }
    this.callback(error, undefined);
  }

  get #current(): DriverQuery | undefined {
    return this.#statements[this.#answered];
  }

  /** The driver remembers which names the server has parsed by the query that it waits for. */
  #showCurrent(): void {
    this.name = this.#current?.name;
    this.text = this.#current?.text ?? '';
  }
}
