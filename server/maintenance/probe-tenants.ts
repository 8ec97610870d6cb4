// Asks many tenants at once whether there is anything to do, so that an idle tenant costs nothing
// of its own: one statement per chunk of tenants, each answer from the front of a small index.

import { isDataError } from '../database/data-error.ts';
import { type Queryable, sqlState } from '../database/database.ts';
import type { Tenant } from '../tenants/tenant.ts';

/** name → SQL over `${schema}`. */
export type Probes = Record<string, (schema: string, tenant: Tenant) => string>;

export type ProbeResults = Record<string, boolean | number | string | null>;

export interface TenantProbeResults {
  tenant: Tenant;
  results: ProbeResults;
}

// Planning time grows with the number of tables in a statement; fifty stay within milliseconds.
const chunkSize = 50;
const undefinedTable = '42P01';

export async function probeTenants(
  db: Queryable,
  tenants: readonly Tenant[],
  questions: Probes,
): Promise<TenantProbeResults[]> {
  const all: TenantProbeResults[] = [];
  for (let i = 0; i < tenants.length; i += chunkSize) {
    all.push(...(await probeChunk(db, tenants.slice(i, i + chunkSize), questions)));
  }
  return all;
}

async function probeChunk(db: Queryable, tenants: readonly Tenant[], questions: Probes): Promise<TenantProbeResults[]> {
  const selects = tenants.map((tenant, i) => {
    const columns = Object.entries(questions).map(([name, ask]) => `${ask(tenant.schema, tenant)} as ${name}`);
    return `select ${i}::int as position, ${columns.join(', ')}`;
  });
  try {
    const rows = await db.query<ProbeResults>(selects.join('\nunion all\n'));
    return rows.map(({ position, ...results }) => ({ tenant: tenants[position as number] as Tenant, results }));
  } catch (error) {
    // A tenant was deleted meanwhile, or the cluster does not join tenants: ask each alone.
    if (tenants.length > 1) {
      const single: TenantProbeResults[] = [];
      for (const tenant of tenants) single.push(...(await probeChunk(db, [tenant], questions)));
      return single;
    }
    if (sqlState(error) === undefinedTable) return [];
    const [tenant] = tenants;
    if (tenant === undefined || !isDataError(error)) throw error;
    return [{ tenant, results: await probeOneByOne(db, tenant, questions) }];
  }
}

/** A row that one question cannot read must not silence the others, nor those to other tenants: its answer is null. */
async function probeOneByOne(db: Queryable, tenant: Tenant, questions: Probes): Promise<ProbeResults> {
  const answers: ProbeResults = {};
  for (const [name, ask] of Object.entries(questions)) {
    try {
      const [row] = await db.query<{ answer: ProbeResults[string] }>(`select ${ask(tenant.schema, tenant)} as answer`);
      answers[name] = row?.answer ?? null;
    } catch (error) {
      if (!isDataError(error)) throw error;
      answers[name] = null;
    }
  }
  return answers;
}

/** SQL: milliseconds from now, by the database's clock, until `time`. */
export function msUntil(time: string): string {
  return `extract(epoch from (${time} - now()))::float8 * 1000`;
}

/** The answer to a question for the milliseconds until the next of something; infinite if there is none. */
export function msOrInfinity(answer: ProbeResults[string] | undefined): number {
  return typeof answer === 'number' ? answer : Number.POSITIVE_INFINITY;
}
