// Reads one job, jobs by ids or keys, and pages of jobs. page-of-ids.ts finds the ids of a page.

import { and, desc, eq, isNotNull, type SQL, type SQLWrapper, sql } from 'drizzle-orm';
import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { jsonBytes, withinBytes } from '../../database/reads/bounded-reads.ts';
import { build, columnList, columnsOf, defineRead } from '../../database/reads/drizzle.ts';
import { tenant } from '../../database/sql.ts';
import { jobs, leases, phases } from '../../database/tables/tenant.ts';
import { type Job, toJob } from '../model/job.ts';
import type { JobFilter } from './filter.ts';
import { type IdPageRequest, pageOfIds } from './page-of-ids.ts';

const all = columnsOf(jobs);
/** All columns except large documents and those that only idempotent requests compare. */
const { payload, result, checkpoint: _, requestHash, ...summary } = all;

/** Jobs with the times of their active lease. */
const selectJobs = <S extends Partial<typeof all> & { hasPhases?: SQL.Aliased<boolean> }>(columns: S) =>
  build
    .select({
      ...columns,
      leaseExpiresAt: sql<string | null>`${leases.expiresAt}`.as('leaseExpiresAt'),
      heartbeatAt: sql<string | null>`${leases.lastHeartbeatAt}`.as('heartbeatAt'),
    })
    .from(jobs)
    .leftJoin(leases, and(eq(leases.id, jobs.leaseId), sql`${leases.state} = 'ACTIVE'`, isNotNull(jobs.leaseOwner)));

// Few jobs have phases; the others need no second statement.
const hasPhases = sql<boolean>`exists (select from ${phases} where ${phases.jobId} = ${jobs.id})`.as('hasPhases');
const documentBytes = sql.raw(
  ['payload', 'result', 'checkpoint', 'error', 'constraints'].map((name) => jsonBytes(name)).join(' + '),
);
const byId = defineRead<{ id: string }>('keepPlan')(({ id }) =>
  selectJobs({ ...all, hasPhases }).where(eq(jobs.id, id)),
);

export async function findJob(db: Queryable, schema: Schema, id: string): Promise<Job | undefined> {
  const [row] = await byId(db, schema, { id });
  return row && toJob(row);
}

// Parsing half a megabyte takes 35 ms, so the documents of fifty jobs must not arrive together and block the event
// loop.
const smallBytes = 8192;

const smallByIds = defineRead<{ ids: readonly string[] }>('keepPlan')(({ ids }) =>
  build
    .select({
      ...all,
      hasPhases,
      // Not a join: a cached plan must look up each lease by its key, even if there were few when it was made.
      leaseExpiresAt: ofLease(leases.expiresAt).as('leaseExpiresAt'),
      heartbeatAt: ofLease(leases.lastHeartbeatAt).as('heartbeatAt'),
    })
    .from(jobs)
    .where(and(sql`${jobs.id} = any(${ids}::uuid[])`, sql`${documentBytes} <= ${sql.raw(String(smallBytes))}`)),
);

function ofLease(column: SQLWrapper): SQL<string | null> {
  const active = sql`select ${column} from ${leases} where ${leases.id} = ${jobs.leaseId} and ${leases.state} = 'ACTIVE'`;
  return sql<string | null>`case when ${jobs.leaseOwner} is not null then (${active}) end`;
}

/** Reads the jobs whose documents are small, in no order. */
export async function readSmallJobs(db: Queryable, schema: Schema, ids: readonly string[]): Promise<Job[]> {
  return (await smallByIds(db, schema, { ids })).map(toJob);
}

const byRequestIds = <S extends Partial<typeof all>>(columns: S) =>
  defineRead<{ keys: readonly string[] }>()(({ keys }) =>
    selectJobs(columns).where(sql`${jobs.clientRequestId} = any(${keys}::text[])`),
  );
const wholeByRequestIds = byRequestIds(all);
const summariesByRequestIds = byRequestIds({ ...summary, requestHash });

/** Reads the jobs of idempotent requests. */
export async function readJobsByRequestIds(
  db: Queryable,
  schema: Schema,
  keys: readonly string[],
  { withDocuments }: { withDocuments: boolean },
): Promise<Job[]> {
  return (await (withDocuments ? wholeByRequestIds : summariesByRequestIds)(db, schema, { keys })).map(toJob);
}

const summariesById = defineRead<{ ids: readonly string[] }>()(({ ids }) =>
  selectJobs(summary).where(sql`${jobs.id} = any(${ids}::uuid[])`),
);

/** Reads jobs in no order, without those that no longer exist. */
export async function readSummaries(db: Queryable, schema: Schema, ids: readonly string[]): Promise<Job[]> {
  return (await summariesById(db, schema, { ids })).map(toJob);
}

export interface JobPage {
  jobs: Job[];
  /** The cursor of the next page, which has smaller ids. Undefined for the last page. */
  next: string | undefined;
}

export interface PageRequest extends IdPageRequest {
  /** Payloads and results can be large; a list without them reads no TOAST. */
  withDocuments?: boolean | undefined;
}

/** The columns of a summary, for hand-written statements over `j`. */
export const summaryColumns = columnList(jobs, summary, 'j');

export async function listJobs(db: Queryable, schema: Schema, filter: JobFilter, page: PageRequest): Promise<JobPage> {
  const { ids, next } = await pageOfIds(db, schema, filter, page);
  if (ids.length === 0) return { jobs: [], next };
  const rows = await (page.withDocuments ? pageWithDocuments : pageOfSummaries)(db, schema, { ids });
  return { jobs: rows.map(toJob), next: nextOf(ids, rows, next) };
}

const pageOfSummaries = defineRead<{ ids: readonly string[] }>()(({ ids }) =>
  selectJobs(summary)
    .where(sql`${jobs.id} = any(${fittingIds(ids, [])})`)
    .orderBy(desc(jobs.id)),
);
const pageWithDocuments = defineRead<{ ids: readonly string[] }>()(({ ids }) =>
  selectJobs({ ...summary, payload, result })
    .where(sql`${jobs.id} = any(${fittingIds(ids, ['payload', 'result'])})`)
    .orderBy(desc(jobs.id)),
);

function fittingIds(ids: SQLWrapper, documents: readonly string[]): SQL {
  const [before = '', after = ''] = idsWithinBytes(tenant, documents, ':ids').split(':ids');
  return sql`${sql.raw(before)}${ids}${sql.raw(after)}`;
}

/** SQL for the ids in the parameter `ids`, newest first, as far as their documents fit into one page. */
export function idsWithinBytes(schema: Schema, documents: readonly string[], ids: string): string {
  const bytes = ['error', 'constraints', ...documents].map((name) => jsonBytes(name)).join(' + ');
  const sized = `select id, ${bytes} as bytes from ${schema}.jobs where id = any(${ids}::uuid[])`;
  return `array(select id from (${withinBytes(sized, 'id desc')}) as fitting)`;
}

/** A page that ended early continues after its last job. */
export function nextOf(ids: string[], rows: readonly { id: string }[], next: string | undefined): string | undefined {
  const last = rows.at(-1)?.id;
  return last === undefined || last === ids.at(-1) ? next : last;
}
