// What a command uses: the settings, a database that is opened when first needed, and printing. Without DATABASE_URL it
// is the embedded Postgres: that of a running daemon, or one started for the command.
import { pino } from 'pino';
import { Database } from '../database/database.ts';
import { findRunningPostgres, startEmbeddedPostgres } from '../embedded-postgres/start.ts';
import { type Config, loadConfig } from '../kernel/config.ts';
import type { Logger } from '../kernel/logger.ts';

export interface Terminal {
  env: Record<string, string | undefined>;
  /** Adds the settings of a file to `env`, as the daemon does. */
  loadEnvFile?(): void;
  out(text: string): void;
  err(text: string): void;
}

export class Session {
  readonly terminal: Terminal;
  readonly logger: Logger;
  /** Set by a command that ended without an error to report, and without success. */
  failed = false;
  #json: () => boolean;
  #config: Config | undefined;
  #database: Promise<Database> | undefined;
  #closers: (() => Promise<void>)[] = [];

  constructor(terminal: Terminal, json: () => boolean) {
    this.terminal = terminal;
    this.#json = json;
    // Standard output has the result only.
    this.logger = pino({ level: 'warn' }, { write: (line: string) => terminal.err(line) });
  }

  get json(): boolean {
    return this.#json();
  }

  get config(): Config {
    if (this.#config === undefined) {
      this.terminal.loadEnvFile?.();
      this.#config = loadConfig(this.terminal.env);
    }
    return this.#config;
  }

  database(): Promise<Database> {
    this.#database ??= this.#open();
    return this.#database;
  }

  /** Prints the value as JSON with `--json`, else the text. */
  print(value: unknown, text: string): void {
    this.terminal.out(this.json ? `${JSON.stringify(value, null, 2)}\n` : `${text}\n`);
  }

  async close(): Promise<void> {
    for (const close of this.#closers.reverse()) await close();
    this.#closers = [];
  }

  async #open(): Promise<Database> {
    const url = await this.#url();
    const db = new Database({
      url,
      poolMax: this.config.migrateConcurrency + 1,
      logger: this.logger,
      applicationName: 'leasehold-cli',
    });
    this.#closers.push(() => db.close());
    return db;
  }

  async #url(): Promise<string> {
    const { databaseUrl, dataDir } = this.config;
    if (databaseUrl !== '') return databaseUrl;
    const running = await findRunningPostgres(dataDir);
    if (running !== undefined) return running;
    const embedded = await startEmbeddedPostgres({ dataDir, logger: this.logger });
    this.#closers.push(() => embedded.stop());
    return embedded.url;
  }
}

export function table(headings: readonly string[], rows: readonly (readonly string[])[]): string {
  const all = [headings, ...rows];
  const widths = headings.map((_, column) => Math.max(...all.map((row) => (row[column] ?? '').length)));
  return all
    .map((row) =>
      row
        .map((cell, i) => cell.padEnd(widths[i] ?? 0))
        .join('  ')
        .trimEnd(),
    )
    .join('\n');
}

/** One `name  value` line for each field. */
export function facts(pairs: Record<string, string>): string {
  const width = Math.max(...Object.keys(pairs).map((name) => name.length));
  return Object.entries(pairs)
    .map(([name, value]) => `${name.padEnd(width)}  ${value}`)
    .join('\n');
}
