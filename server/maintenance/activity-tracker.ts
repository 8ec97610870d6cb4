// Where anything happened since the last look, in one statement for hundreds of tenants. Whatever
// happens leaves an event, every event takes a number from its tenant's sequence, and how far a
// sequence has come can be read without a table. A tenant whose number stands still is quiet.
import type { Queryable } from '../database/database.ts';
import type { Tenant } from '../tenants/tenant.ts';
import { tenantsFingerprint } from '../tenants/tenant-store.ts';

interface Row {
  tenants: string;
  /** On a cluster the numbers are taken on other nodes: nothing can be said. */
  sharded: boolean;
  /** Every transaction before this one is over. */
  xmin: string;
  /** If asked for: a transaction behind all that have begun to write. */
  latest: string | null;
  marks: string | null;
}

interface Activity {
  number: string;
  /** Transactions up to this one may still hold events under numbers that were seen. Undefined: not yet known. */
  awaited: bigint | undefined;
  settled: boolean;
}

// Each sequence is locked for the length of the statement, in a table that all connections share.
const chunkSize = 500;

export class ActivityTracker {
  #marks = new Map<string, Activity>();
  #chunks = new Map<number, string | null>();
  #unsettled = new Set<string>();

  /** Reads all marks. Returns the fingerprint of the tenants, which comes with them. */
  async read(db: Queryable, tenants: readonly Tenant[]): Promise<string> {
    const names = tenants.map((tenant) => tenant.schemaName);
    let fingerprint = '';
    const changed = new Set<string>();
    // Of tenants that are gone, too, there were marks.
    if (this.#marks.size > 2 * names.length) this.forget();
    for (let i = 0; i === 0 || i < names.length; i += chunkSize) {
      const [row] = await db.query<Row>(statement, [names.slice(i, i + chunkSize), this.#asksForLatest()]);
      if (row === undefined) throw new Error('the marks of the tenants were not told');
      fingerprint = row.tenants;
      this.#take(i, row, changed);
    }
    return fingerprint;
  }

  /** They could not be read: nobody is known to be quiet. */
  forget(): void {
    this.#marks.clear();
    this.#chunks.clear();
    this.#unsettled.clear();
  }

  /** A word that changes whenever something happens at the tenant. */
  versionOf(tenant: Tenant): string | undefined {
    return this.#marks.get(tenant.schemaName)?.number;
  }

  /** Everything that was written under the present mark is committed, or never will be. */
  isCommitted(tenant: Tenant): boolean {
    return this.#marks.get(tenant.schemaName)?.settled === true;
  }

  #take(chunk: number, row: Row, changed: Set<string>): void {
    if (row.sharded) {
      this.forget();
      return;
    }
    if (row.marks !== this.#chunks.get(chunk)) {
      for (const [name = '', number = ''] of parse(row.marks)) {
        if (this.#marks.get(name)?.number === number) continue;
        this.#marks.set(name, { number, awaited: undefined, settled: false });
        this.#unsettled.add(name);
        changed.add(name);
      }
      this.#chunks.set(chunk, row.marks);
    }
    for (const name of this.#unsettled) if (!changed.has(name)) this.#settle(name, row);
  }

  /**
   * The number is taken before the commit, and just before the transaction has an id: those under way
   * one look after the number last changed are awaited, then it says all. (How far the ids have come can
   * only be told by taking one: a snapshot's xmax is behind those that are under way.)
   */
  #settle(name: string, { xmin, latest }: Row): void {
    const mark = this.#marks.get(name);
    if (mark === undefined) return;
    if (mark.awaited === undefined && latest !== null) mark.awaited = BigInt(latest);
    if (mark.awaited === undefined || BigInt(xmin) <= mark.awaited) return;
    mark.settled = true;
    this.#unsettled.delete(name);
  }

  #asksForLatest(): boolean {
    for (const name of this.#unsettled) if (this.#marks.get(name)?.awaited === undefined) return true;
    return false;
  }
}

function parse(marks: string | null): string[][] {
  return marks === null ? [] : marks.split(',').map((mark) => mark.split(' '));
}

const statement = `select (${tenantsFingerprint}) as tenants,
    exists (select 1 from pg_extension where extname = 'citus') as sharded,
    pg_snapshot_xmin(pg_current_snapshot())::text as xmin, case when $2 then pg_current_xact_id()::text end as latest,
    (select string_agg(n.nspname || ' ' || coalesce(pg_sequence_last_value(c.oid), 0), ',')
       from pg_namespace n join pg_class c on c.relnamespace = n.oid and c.relname = 'events_seq_seq' and c.relkind = 'S'
      where n.nspname = any($1::text[])) as marks`;
