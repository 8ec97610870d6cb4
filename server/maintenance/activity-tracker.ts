// Finds the tenants with writes since the last poll, in one statement for hundreds of tenants. Every change writes an
// event, and every event takes a number from its tenant's sequence, whose last value can be read without touching a
// table. That value is the tenant's version.
import type { Queryable } from '../database/database.ts';
import { runQuery } from '../database/sql.ts';
import type { Tenant } from '../tenants/tenant.ts';
import { tenantsFingerprint } from '../tenants/tenant-store.ts';

interface Row {
  tenants: string;
  /** On a cluster, other nodes assign the numbers, so versions cannot be read here. */
  sharded: boolean;
  /** Every transaction before this one has ended. */
  xmin: string;
  /** If requested: a transaction id above all assigned ones. */
  latest: string | null;
  /** `schema version,schema version,…` */
  versions: string | null;
}

interface Activity {
  version: string;
  /** Transactions up to this one may still commit events numbered up to `version`. Undefined if it is not known yet. */
  lastWriter: bigint | undefined;
  committed: boolean;
}

// Each sequence is locked while the statement runs, in a lock table that all connections share.
const chunkSize = 500;

export class ActivityTracker {
  #bySchema = new Map<string, Activity>();
  #chunks = new Map<number, string | null>();
  #uncommitted = new Set<string>();

  /** Reads all versions. Returns the fingerprint of the list of tenants, which the same statement reads. */
  async read(db: Queryable, tenants: readonly Tenant[]): Promise<string> {
    const names = tenants.map((tenant) => tenant.schemaName);
    let fingerprint = '';
    const changed = new Set<string>();
    // Deleted tenants stay in the map until then.
    if (this.#bySchema.size > 2 * names.length) this.clear();
    for (let i = 0; i === 0 || i < names.length; i += chunkSize) {
      const [row] = await runQuery<Row>(db, activityQuery, {
        schemas: names.slice(i, i + chunkSize),
        withLatest: this.#needsLatest(),
      });
      if (row === undefined) throw new Error('the statement for the activity of tenants returned no row');
      fingerprint = row.tenants;
      this.#update(i, row, changed);
    }
    return fingerprint;
  }

  /** Forgets all versions, so that no tenant counts as idle. */
  clear(): void {
    this.#bySchema.clear();
    this.#chunks.clear();
    this.#uncommitted.clear();
  }

  /** Changes whenever an event of the tenant is written. */
  versionOf(tenant: Tenant): string | undefined {
    return this.#bySchema.get(tenant.schemaName)?.version;
  }

  /** True if every event numbered up to the version has been committed or rolled back. */
  isCommitted(tenant: Tenant): boolean {
    return this.#bySchema.get(tenant.schemaName)?.committed === true;
  }

  #update(chunk: number, row: Row, changed: Set<string>): void {
    if (row.sharded) {
      this.clear();
      return;
    }
    if (row.versions !== this.#chunks.get(chunk)) {
      for (const [name = '', version = ''] of parseVersions(row.versions)) {
        if (this.#bySchema.get(name)?.version === version) continue;
        this.#bySchema.set(name, { version, lastWriter: undefined, committed: false });
        this.#uncommitted.add(name);
        changed.add(name);
      }
      this.#chunks.set(chunk, row.versions);
    }
    for (const name of this.#uncommitted) if (!changed.has(name)) this.#checkCommitted(name, row);
  }

  /**
   * An event gets its number before the commit, just before its transaction gets an id. So the tracker waits for the
   * transactions that have an id one poll after the last change. Only taking an id reveals the highest one, because the
   * xmax of a snapshot is lower than the ids of transactions in progress.
   */
  #checkCommitted(name: string, { xmin, latest }: Row): void {
    const activity = this.#bySchema.get(name);
    if (activity === undefined) return;
    if (activity.lastWriter === undefined && latest !== null) activity.lastWriter = BigInt(latest);
    if (activity.lastWriter === undefined || BigInt(xmin) <= activity.lastWriter) return;
    activity.committed = true;
    this.#uncommitted.delete(name);
  }

  #needsLatest(): boolean {
    for (const name of this.#uncommitted) if (this.#bySchema.get(name)?.lastWriter === undefined) return true;
    return false;
  }
}

function parseVersions(versions: string | null): string[][] {
  return versions === null ? [] : versions.split(',').map((entry) => entry.split(' '));
}

const activityQuery = `select
    (${tenantsFingerprint}) as tenants,
    exists (select 1 from pg_extension where extname = 'citus') as sharded,
    pg_snapshot_xmin(pg_current_snapshot())::text as xmin,
    case when :withLatest then pg_current_xact_id()::text end as latest,
    (select string_agg(n.nspname || ' ' || coalesce(pg_sequence_last_value(c.oid), 0), ',')
       from pg_namespace n
       join pg_class c on c.relnamespace = n.oid and c.relname = 'events_seq_seq' and c.relkind = 'S'
      where n.nspname = any(:schemas::text[])) as versions`;
