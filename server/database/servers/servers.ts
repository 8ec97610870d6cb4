// Chooses the server of a database that accepts writes. With several hosts, all are probed before a new connection if
// the last choice may be wrong: after a failure, and periodically.
import pg from 'pg';
import { parseDatabaseUrl } from '../../kernel/database-url.ts';
import { errorMessage } from '../../kernel/errors.ts';

export interface ServerState {
  url: string;
  /** Host and port without user and password, for logs. */
  name: string;
  writable: boolean;
  /** Grows with every promotion of a standby. */
  timeline: number;
  /** Equal for all servers that were copied from one another. */
  systemId: string;
}

interface Unreachable {
  url: string;
  name: string;
  error: string;
}

type ProbeResult = { servers: ServerState[]; unreachable: Unreachable[] };

/** Two servers of one database accept writes. */
export interface SplitBrain {
  used: string | undefined;
  refused: string;
  reason: string;
}

// An unreachable host must not delay the others.
const probeTimeoutMs = 2_000;

export class Servers {
  readonly urls: readonly string[];
  readonly #writableOnly: boolean;
  #current: ServerState | undefined;
  #suspect = true;
  #checking: Promise<void> | undefined;
  #splitBrains = new Map<string, SplitBrain>();
  /** The newest timeline seen: a server with an older one was replaced by a promotion. */
  #newest: { systemId: string; timeline: number } | undefined;
  /** Incremented when another server is chosen. Connections with a lower number lead to the wrong one. */
  #generation = 0;

  constructor(url: string) {
    const address = parseDatabaseUrl(url) ?? { urls: [url], writableOnly: false };
    this.urls = address.urls;
    this.#writableOnly = address.writableOnly;
  }

  /** True if a server must be chosen or checked before a connection. */
  get isChosen(): boolean {
    return this.#writableOnly;
  }

  get generation(): number {
    return this.#generation;
  }

  /** For logs. */
  get currentName(): string | undefined {
    return this.#current?.name;
  }

  get splitBrains(): SplitBrain[] {
    return [...this.#splitBrains.values()];
  }

  /** The current server may have failed or been demoted. The next connection probes first. */
  suspect(): void {
    this.#suspect = true;
  }

  /** Returns the address to connect to. Rejects, with all reasons, if no server accepts writes. */
  async pick(): Promise<{ host: string; port: number }> {
    if (this.#writableOnly && (this.#suspect || this.#current === undefined)) await this.check();
    const { host, port } = new pg.Client({ connectionString: this.#current?.url ?? this.url });
    return { host, port };
  }

  /** A URL for the settings that all servers share: user, database, encryption. */
  get url(): string {
    return this.urls[0] as string;
  }

  /** Probes every server and chooses one. Concurrent callers share one check. */
  check(): Promise<void> {
    this.#checking ??= this.#choose().finally(() => {
      this.#checking = undefined;
    });
    return this.#checking;
  }

  async #choose(): Promise<void> {
    const { servers, unreachable } = await probeServers(this.urls);
    const writable = servers.filter((server) => server.writable);
    for (const server of servers) this.#remember(server);
    const valid = writable.filter((server) => !this.#isOutdated(server));
    // The current server is kept if it is valid: nothing distinguishes two servers of one timeline. A server of another
    // cluster is used only if there is no other, as after an upgrade.
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

  #isOutdated({ systemId, timeline }: ServerState): boolean {
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

/** Has the SQL state of a read-only transaction, because callers handle both alike. */
class NoWritableServer extends Error {
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

async function probeServers(urls: readonly string[]): Promise<ProbeResult> {
  const found: ProbeResult = { servers: [], unreachable: [] };
  for (const answer of await Promise.all(urls.map(probe))) {
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

const stateQuery = `
  select current_setting('transaction_read_only') = 'off' as writable, system_identifier::text as system_id,
         case when pg_is_in_recovery() then coalesce((select received_tli from pg_stat_wal_receiver), timeline_id)::text
              else ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int::text end as timeline
    from pg_control_system(), pg_control_checkpoint()`;
// Hosted databases may deny access to the rest.
const roleQuery = `select current_setting('transaction_read_only') = 'off' as writable, '' as system_id, '0' as timeline`;

async function probe(url: string): Promise<ServerState | Unreachable> {
  const name = nameOf(url);
  const client = new pg.Client({
    connectionString: url,
    connectionTimeoutMillis: probeTimeoutMs,
    query_timeout: probeTimeoutMs,
    application_name: 'leasehold-probe',
  });
  client.on('error', () => {});
  try {
    await client.connect();
    const [row] = (await client.query<StateRow>(stateQuery).catch(() => client.query<StateRow>(roleQuery))).rows;
    if (row === undefined) return { url, name, error: 'it gave no answer' };
    return { url, name, writable: row.writable, timeline: Number(row.timeline), systemId: row.system_id };
  } catch (error) {
    return { url, name, error: errorMessage(error) || 'it cannot be reached' };
  } finally {
    // Not awaited: the server may not answer.
    void client.end().catch(() => {});
  }
}

function nameOf(url: string): string {
  return /^[^:]+:\/\/(?:[^/?#]*@)?([^/?#]*)/.exec(url)?.[1] || 'localhost';
}

/** A client class that connects to the server that is current at that moment. */
export function clientOf(servers: Servers): typeof pg.Client {
  if (!servers.isChosen) return pg.Client;
  const connect = pg.Client.prototype.connect as (this: pg.Client) => Promise<unknown>;
  return class extends pg.Client {
    // The driver's type has two overloads.
    override connect = ((callback?: (error?: Error) => void) => {
      const connecting = this.#connectToPicked();
      if (callback === undefined) return connecting;
      connecting.then(() => callback(), callback);
    }) as pg.Client['connect'];

    async #connectToPicked(): Promise<void> {
      // The caller adds its listener when the promise has resolved. A server that closes the connection right after it
      // has accepted it sends both at once, and an error without a listener would end the process.
      this.on('error', () => {});
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
