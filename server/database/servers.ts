// The servers of a database and which of them accepts writes. With one host there is nothing to choose. With several,
// all are asked before a new connection is made whenever the last choice may be wrong: after a failure, and now and then.
import pg from 'pg';
import { parseDatabaseUrl } from '../kernel/database-url.ts';
import { errorMessage } from '../kernel/errors.ts';

export interface ServerState {
  url: string;
  /** For people: host and port, no user and no password. */
  name: string;
  writable: boolean;
  /** Grows with every promotion of a standby. */
  timeline: number;
  /** The same for all servers that were copied from one another. */
  systemId: string;
}

export interface Unreachable {
  url: string;
  name: string;
  error: string;
}

export type Survey = { servers: ServerState[]; unreachable: Unreachable[] };

/** Two servers accept writes that should be one. */
export interface SplitBrain {
  used: string | undefined;
  refused: string;
  reason: string;
}

// A host that is gone must not hold up those that are there.
const askTimeoutMs = 2_000;

export class Servers {
  readonly urls: readonly string[];
  readonly #writableOnly: boolean;
  #current: ServerState | undefined;
  #suspect = true;
  #asking: Promise<void> | undefined;
  #splitBrains = new Map<string, SplitBrain>();
  /** The newest history seen: a server with an older one was left behind by a promotion. */
  #newest: { systemId: string; timeline: number } | undefined;
  /** Goes up when another server is used: connections made before lead to the wrong one. */
  #generation = 0;

  constructor(url: string) {
    const address = parseDatabaseUrl(url) ?? { urls: [url], writableOnly: false };
    this.urls = address.urls;
    this.#writableOnly = address.writableOnly;
  }

  /** There is something to choose, or to check. */
  get isChosen(): boolean {
    return this.#writableOnly;
  }

  get generation(): number {
    return this.#generation;
  }

  /** For people. */
  get currentName(): string | undefined {
    return this.#current?.name;
  }

  get splitBrains(): SplitBrain[] {
    return [...this.#splitBrains.values()];
  }

  /** The server in use may have failed or lost its role: ask before the next connection. */
  suspect(): void {
    this.#suspect = true;
  }

  /** Where to connect now; rejects, with all reasons, if no server accepts writes. */
  async pick(): Promise<{ host: string; port: number }> {
    if (this.#writableOnly && (this.#suspect || this.#current === undefined)) await this.check();
    const { host, port } = new pg.Client({ connectionString: this.#current?.url ?? this.url });
    return { host, port };
  }

  /** What the driver needs to know of all of them: user, database, encryption. */
  get url(): string {
    return this.urls[0] as string;
  }

  /** Asks every server and settles which one is used. Callers at the same time share one round. */
  check(): Promise<void> {
    this.#asking ??= this.#choose().finally(() => {
      this.#asking = undefined;
    });
    return this.#asking;
  }

  async #choose(): Promise<void> {
    const { servers, unreachable } = await survey(this.urls);
    const writable = servers.filter((server) => server.writable);
    for (const server of servers) this.#remember(server);
    const valid = writable.filter((server) => !this.#isLeftBehind(server));
    // Among equals the one in use stays: two servers of one timeline cannot be told apart. A server of another
    // cluster is used only where there is no other: an upgrade makes one.
    const known = valid.filter((server) => server.systemId === this.#newest?.systemId);
    const chosen = valid.find((server) => server.url === this.#current?.url) ?? known[0] ?? valid[0];
    this.#noteSplitBrains(writable, chosen);
    if (chosen === undefined) {
      this.#suspect = true;
      throw new NoWritableServer(servers, unreachable, this.splitBrains);
    }
    if (this.#current !== undefined && this.#current.url !== chosen.url) this.#generation += 1;
    this.#current = chosen;
    if (chosen.systemId !== this.#newest?.systemId) this.#newest = chosen;
    this.#suspect = false;
  }

  #remember({ systemId, timeline }: ServerState): void {
    if (this.#newest === undefined) this.#newest = { systemId, timeline };
    else if (this.#newest.systemId === systemId) this.#newest.timeline = Math.max(this.#newest.timeline, timeline);
  }

  #isLeftBehind({ systemId, timeline }: ServerState): boolean {
    return systemId === this.#newest?.systemId && timeline < this.#newest.timeline;
  }

  #noteSplitBrains(writable: ServerState[], chosen: ServerState | undefined): void {
    this.#splitBrains.clear();
    for (const server of writable) {
      if (server === chosen) continue;
      this.#splitBrains.set(server.name, {
        used: chosen?.name,
        refused: server.name,
        reason: this.#reasonAgainst(server),
      });
    }
  }

  #reasonAgainst({ systemId, timeline }: ServerState): string {
    if (this.#newest === undefined) return 'another server is in use';
    if (systemId !== this.#newest.systemId) return 'it belongs to another database cluster';
    if (timeline < this.#newest.timeline)
      return `its timeline ${timeline} ended; the current one is ${this.#newest.timeline}`;
    return `two servers accept writes on timeline ${timeline}`;
  }
}

/** Carries the state of a read-only transaction: callers treat both alike. */
export class NoWritableServer extends Error {
  override name = 'NoWritableServer';
  readonly code = '25006';

  constructor(servers: ServerState[], unreachable: Unreachable[], splitBrains: SplitBrain[]) {
    const refused = new Map(splitBrains.map((one) => [one.refused, one.reason]));
    const reasons = [
      ...servers.map(({ name }) => `${name} ${refused.get(name) ?? 'is a standby or read-only'}`),
      ...unreachable.map(({ name, error }) => `${name}: ${error}`),
    ];
    super(`no server accepts writes: ${reasons.join('; ')}`);
  }
}

async function survey(urls: readonly string[]): Promise<Survey> {
  const found: Survey = { servers: [], unreachable: [] };
  for (const answer of await Promise.all(urls.map(ask))) {
    if ('error' in answer) found.unreachable.push(answer);
    else found.servers.push(answer);
  }
  return found;
}

interface StateRow {
  writable: boolean;
  timeline: string;
  system_id: string;
}

const askForState = `
  select current_setting('transaction_read_only') = 'off' as writable, system_identifier::text as system_id,
         case when pg_is_in_recovery() then coalesce((select received_tli from pg_stat_wal_receiver), timeline_id)::text
              else ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int::text end as timeline
    from pg_control_system(), pg_control_checkpoint()`;
// Hosted databases may keep the rest to themselves.
const askForRole = `select current_setting('transaction_read_only') = 'off' as writable, '' as system_id, '0' as timeline`;

async function ask(url: string): Promise<ServerState | Unreachable> {
  const name = nameOf(url);
  const client = new pg.Client({
    connectionString: url,
    connectionTimeoutMillis: askTimeoutMs,
    query_timeout: askTimeoutMs,
    application_name: 'leasehold-probe',
  });
  client.on('error', () => {});
  try {
    await client.connect();
    const [row] = (await client.query<StateRow>(askForState).catch(() => client.query<StateRow>(askForRole))).rows;
    if (row === undefined) return { url, name, error: 'it gave no answer' };
    return { url, name, writable: row.writable, timeline: Number(row.timeline), systemId: row.system_id };
  } catch (error) {
    return { url, name, error: errorMessage(error) || 'it cannot be reached' };
  } finally {
    // One that answers nothing is not waited for.
    void client.end().catch(() => {});
  }
}

function nameOf(url: string): string {
  return /^[^:]+:\/\/(?:[^/?#]*@)?([^/?#]*)/.exec(url)?.[1] || 'localhost';
}

/** A client class whose connections go to the server that is picked when they are made. */
export function clientOf(servers: Servers): typeof pg.Client {
  if (!servers.isChosen) return pg.Client;
  const connect = pg.Client.prototype.connect as (this: pg.Client) => Promise<unknown>;
  return class extends pg.Client {
    // The driver's own type of it has two forms.
    override connect = ((callback?: (error?: Error) => void) => {
      const connecting = this.#connectToPicked();
      if (callback === undefined) return connecting;
      connecting.then(() => callback(), callback);
    }) as pg.Client['connect'];

    async #connectToPicked(): Promise<void> {
      Object.assign(this, await servers.pick());
      const { stream } = (this as unknown as { connection: { stream: { destroyed: boolean } } }).connection;
      if (stream.destroyed) throw new Error('connection timeout expired');
      try {
        await connect.call(this);
      } catch (error) {
        servers.suspect();
        throw error;
      }
    }
  };
}
