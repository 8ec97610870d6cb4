// Probes: cheap SQL expressions about a tenant, sent for many tenants in one statement, so that an idle tenant costs no
// statement of its own. Each reads the front of a small index.

import pLimit from 'p-limit';
import type { Database, Queryable } from '../database/database.ts';
import { isDatabaseLost, isDataError, sqlState } from '../database/sql-errors.ts';
import { hasLateEvents } from '../events/log/read-new-events.ts';
import { currentSnapshot } from '../events/log/transaction-ids.ts';
import { staleFollower } from '../jobs/retention/mark-stale.ts';
import type { Tenant } from '../tenants/tenant.ts';

/** SQL expressions over the tables of `schema`, by name. */
export type Probes = Record<string, (schema: string, tenant: Tenant) => string>;

export type ProbeResults = Record<string, boolean | number | string | null>;

export interface TenantProbeResults {
  tenant: Tenant;
  results: ProbeResults;
}

// Planning time grows with the number of tables in a statement; fifty tenants stay within milliseconds.
const chunkSize = 50;
// Used on a cluster, or after a failure. Workers and requests need the other connections.
const probesAtOnce = 4;
const undefinedTable = '42P01';

export interface ProbedTenants {
  found: TenantProbeResults[];
  failed: FailedProbe[];
}

export interface FailedProbe {
  tenant: Tenant;
  error: unknown;
}

/** Probes the tenants, without those deleted meanwhile. A failing tenant does not keep others from being probed. */
export async function probeTenants(
  db: Pick<Database, 'query' | 'sharded'>,
  tenants: readonly Tenant[],
  probes: Probes,
): Promise<ProbedTenants> {
  const all: ProbedTenants = { found: [], failed: [] };
  // A cluster cannot plan a statement over tenants of several nodes.
  if (db.sharded) await probeSingly(db, tenants, probes, all);
  else {
    for (let i = 0; i < tenants.length; i += chunkSize) {
      await probeChunk(db, tenants.slice(i, i + chunkSize), probes, all);
    }
  }
  return all;
}

async function probeChunk(
  db: Queryable,
  tenants: readonly Tenant[],
  probes: Probes,
  all: ProbedTenants,
): Promise<void> {
  try {
    all.found.push(...(await probeTogether(db, tenants, probes)));
  } catch (error) {
    if (isDatabaseLost(error)) throw error;
    // One of the tenants was deleted meanwhile, or fails.
    await probeSingly(db, tenants, probes, all);
  }
}

async function probeTogether(db: Queryable, tenants: readonly Tenant[], probes: Probes): Promise<TenantProbeResults[]> {
  const selects = tenants.map((tenant, i) => {
    const columns = Object.entries(probes).map(([name, probe]) => `${probe(tenant.schema, tenant)} as ${name}`);
    return `select ${i}::int as position, ${columns.join(', ')}`;
  });
  const rows = await db.query<ProbeResults>(selects.join('\nunion all\n'));
  return rows.map(({ position, ...results }) => ({ tenant: tenants[position as number] as Tenant, results }));
}

async function probeSingly(
  db: Queryable,
  tenants: readonly Tenant[],
  probes: Probes,
  all: ProbedTenants,
): Promise<void> {
  const limit = pLimit(probesAtOnce);
  const probe = async (tenant: Tenant): Promise<void> => {
    try {
      all.found.push(...(await probeTogether(db, [tenant], probes)));
    } catch (error) {
      if (isDatabaseLost(error)) throw error;
      if (sqlState(error) === undefinedTable) return;
      if (isDataError(error)) all.found.push({ tenant, results: await probeOneByOne(db, tenant, probes) });
      else all.failed.push({ tenant, error });
    }
  };
  await Promise.all(tenants.map((tenant) => limit(() => probe(tenant))));
}

/** If a probe cannot read a row, its result is null, so that other probes and tenants do not fail. */
async function probeOneByOne(db: Queryable, tenant: Tenant, probes: Probes): Promise<ProbeResults> {
  const results: ProbeResults = {};
  for (const [name, probe] of Object.entries(probes)) {
    try {
      const [row] = await db.query<{ result: ProbeResults[string] }>(
        `select ${probe(tenant.schema, tenant)} as result`,
      );
      results[name] = row?.result ?? null;
    } catch (error) {
      if (!isDataError(error)) throw error;
      results[name] = null;
    }
  }
  return results;
}

/** Returns the result of a probe in milliseconds; infinite if there was no row. */
export function msOrInfinity(result: ProbeResults[string] | undefined): number {
  return typeof result === 'number' ? result : Number.POSITIVE_INFINITY;
}

/** SQL: milliseconds from now, by the database's clock, until `time`; negative if it has passed. */
export function msUntil(time: string): string {
  return `extract(epoch from (${time} - now()))::float8 * 1000`;
}

/** SQL: milliseconds until `column` of the first row that meets the condition. */
export function oldest(schema: string, table: string, column: string, condition: string, order = column): string {
  return `(select ${msUntil(column)} from ${schema}.${table} where ${condition} order by ${order} limit 1)`;
}

/**
 * SQL: the transaction of the last event, read at the end of the primary key, because a condition might scan the whole
 * log.
 */
export function lastEventXid(schema: string): string {
  return `(select e.xid from ${schema}.events e order by e.xid desc, e.seq desc limit 1)`;
}

/**
 * SQL over followers `f`: no event is outside the follower's snapshot, the follower is not in the middle of a large
 * read, and it is not ahead of the log, as after a restore.
 */
export function hasReadAll(schema: string): string {
  const seen = `split_part(f.snapshot, '|', 1)::pg_snapshot`;
  return `strpos(f.snapshot, '|') = 0 and pg_snapshot_xmax(${seen}) <= pg_snapshot_xmax(${currentSnapshot(schema)})
    and coalesce(${lastEventXid(schema)} < pg_snapshot_xmax(${seen}), true) and not ${hasLateEvents(schema, seen)}`;
}

/** SQL: columns of the follower that finds jobs to be marked as stale. */
export function retentionFollower(schema: string, columns = '1'): string {
  return `select ${columns} from ${schema}.followers where name = '${staleFollower}'`;
}

/** SQL: an event that this follower has not read. It never reads those that a restore left with ids of the future. */
export function unreadByRetention(schema: string): string {
  const read = (part: number, type: string) =>
    `coalesce((${retentionFollower(schema, `nullif(split_part(snapshot, '|', ${part}), '')`)}), '0')::${type}`;
  return `(xid, seq) > (${read(3, 'xid8')}, ${read(4, 'bigint')}) and xid < pg_snapshot_xmax(${currentSnapshot(schema)})`;
}
