// The environment of a command: the settings, a database that is opened on first use, and printing. Without
// DATABASE_URL the database is the embedded Postgres: that of a running daemon, or one started for the command.
import { resolve } from 'node:path';
import { pino } from 'pino';
import { Database } from '../database/database.ts';
import { EmbeddedPostgresError } from '../embedded-postgres/embedded-postgres-error.ts';
import { findRunningPostgres, hasCluster, startEmbeddedPostgres } from '../embedded-postgres/start.ts';
import { type Config, loadConfig } from '../kernel/config.ts';
import type { Logger } from '../kernel/logger.ts';

export interface Terminal {
  env: Record<string, string | undefined>;
  /** Adds the settings of a file to `env`, as the daemon does. */
  loadEnvFile?(): void;
  out(text: string): void;
  err(text: string): void;
  /** Set on a terminal: output fits its width, may have colours, and may be redrawn. */
  screen?: Screen | undefined;
  /** Aborted by Ctrl-C, from the first call on, for commands that follow something. */
  interrupted?(): AbortSignal;
}

export interface Screen {
  columns(): number;
  rows(): number;
  colours: boolean;
}

/** The options with which a command finds its daemon or its tenant. */
export interface ConnectionOptions {
  url?: string;
  key?: string;
  tenant?: string;
}

export class Session {
  readonly terminal: Terminal;
  /** Log lines are held back; see `showWarnings`. */
  readonly logger: Logger;
  /** Set by a command that did not succeed and has no error to report. */
  failed = false;
  #json: () => boolean;
  #config: Config | undefined;
  #envLoaded = false;
  #database: Promise<Database> | undefined;
  #url: Promise<string> | undefined;
  #closers: (() => Promise<void>)[] = [];
  readonly #warnings: string[] = [];
  #mayCreateDatabase = false;

  constructor(terminal: Terminal, json: () => boolean) {
    this.terminal = terminal;
    this.#json = json;
    this.logger = pino({ level: 'warn' }, { write: (line: string) => this.#warnings.push(line) });
  }

  get json(): boolean {
    return this.#json();
  }

  /** The environment and `.env`. */
  get env(): Terminal['env'] {
    if (!this.#envLoaded) this.terminal.loadEnvFile?.();
    this.#envLoaded = true;
    return this.terminal.env;
  }

  get config(): Config {
    this.#config ??= loadConfig(this.env);
    return this.#config;
  }

  /** Called after the command has ended, in reverse order. */
  onClose(close: () => Promise<void>): void {
    this.#closers.push(close);
  }

  database(): Promise<Database> {
    this.#database ??= this.#open();
    return this.#database;
  }

  /** For `migrate` only: other commands in a directory without data would leave an empty cluster behind. */
  allowNewDatabase(): void {
    this.#mayCreateDatabase = true;
  }

  /** Prints the value as JSON with `--json`, else the text. */
  print(value: unknown, text: string): void {
    this.terminal.out(this.json ? `${JSON.stringify(value, null, 2)}\n` : `${text}\n`);
  }

  /** Prints warnings of a command that has succeeded. The error of a failed command contains the same information. */
  showWarnings(): void {
    // Standard output has only the result.
    for (const line of this.#warnings.splice(0)) this.terminal.err(line);
  }

  async close(): Promise<void> {
    for (const close of this.#closers.reverse()) await close();
    this.#closers = [];
  }

  async #open(): Promise<Database> {
    const url = await this.databaseUrl();
    const db = new Database({
      url,
      poolMax: this.config.migrateConcurrency + 1,
      logger: this.logger,
      applicationName: 'leasehold-cli',
      tenantRoles: this.config.tenantRoles,
    });
    this.#closers.push(() => db.close());
    return db;
  }

  databaseUrl(): Promise<string> {
    this.#url ??= this.#findUrl();
    return this.#url;
  }

  async #findUrl(): Promise<string> {
    const { databaseUrl, dataDir } = this.config;
    if (databaseUrl !== '') return databaseUrl;
    const running = await findRunningPostgres(dataDir);
    if (running !== undefined) return running;
    if (!this.#mayCreateDatabase && !(await hasCluster(dataDir))) {
      throw new EmbeddedPostgresError(
        `there is no database in ${resolve(dataDir)}; run this command where the daemon runs, or set DATABASE_URL, ` +
          'DATA_DIR or, for commands that take them, --url and --key',
      );
    }
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
