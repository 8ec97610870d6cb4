// The field `after` of a request: the jobs that the new job runs after. A reference is the id of a job of the tenant or
// its client_request_id, which may belong to another job of the same batch.
import { v7 as uuidv7 } from 'uuid';
import { z } from 'zod';
import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { statement, tenant } from '../../database/sql.ts';
import type { Problem } from '../../kernel/errors.ts';
import { invalidFields } from '../../kernel/fields.ts';
import type { NewJob } from '../enqueue/enqueue.ts';
import { type Status, succeededStatuses } from '../model/states.ts';
import { type Dependency, failurePolicies } from './dependencies.ts';

const maxAfter = 1000;
/** Of all jobs of a request: their edges are linked, checked for cycles and written in single steps. */
const maxEdges = 10_000;
const reference = z.string().min(1).max(200);

const edgeRequest = z
  .strictObject({
    job: reference,
    on_failure: z
      .enum(failurePolicies)
      .optional()
      .describe('If it fails or is canceled: `hold` (default) for a person, `cancel` this job, or `continue`.'),
  })
  .meta({ id: 'AfterJob' });

export const afterField = z
  .array(
    z.union([reference, edgeRequest], {
      error: `must be a job's id or client_request_id, or { job, on_failure } with one of ${failurePolicies.join(', ')}`,
    }),
  )
  .max(maxAfter)
  .describe('Ids or client_request_ids of jobs that have to succeed first; also of other jobs of the same batch.');
type AfterRequest = z.output<typeof afterField>;

/** Returns the same value for all ways to request the same edge. */
export function shortestEdge(edge: AfterRequest[number]): AfterRequest[number] {
  return typeof edge === 'string' || (edge.on_failure ?? 'hold') !== 'hold' ? edge : edge.job;
}

/** A job to enqueue, and the references to other jobs in its request. */
export interface LinkedJob {
  job: NewJob;
  after: AfterRequest | undefined;
}

/**
 * Sets `after` of the jobs. Returns the problem of each job that has one. In a batch, such jobs are not enqueued, and
 * jobs that run after them have a problem too. An undefined entry was refused before.
 */
export async function linkJobs(
  db: Queryable,
  schema: Schema,
  items: readonly (LinkedJob | undefined)[],
): Promise<(Problem | undefined)[]> {
  const problems: (Problem | undefined)[] = items.map(() => undefined);
  const count = items.reduce((sum, item) => sum + (item?.after?.length ?? 0), 0);
  if (count === 0) return problems;
  if (count > maxEdges) {
    const message = `name ${count} jobs in \`after\`; all jobs of a request together may name ${maxEdges}`;
    throw invalidFields([{ field: 'jobs', message }]);
  }
  const inBatch = new Map<string, number>();
  for (const [n, item] of items.entries()) {
    const key = item?.job.clientRequestId;
    if (key !== undefined && !inBatch.has(key)) inBatch.set(key, n);
  }
  const found = await findReferences(db, schema, items, inBatch);
  const edges = items.map(() => [] as number[]);
  for (const [n, item] of items.entries()) {
    if (item?.after === undefined || item.after.length === 0) continue;
    const unknown: { field: string; message: string }[] = [];
    const after: Dependency[] = [];
    for (const [place, given] of item.after.entries()) {
      const { job: name, on_failure: onFailure = 'hold' } = typeof given === 'string' ? { job: given } : given;
      const other = inBatch.get(name);
      const linked = other === undefined ? undefined : items[other]?.job;
      const existing = found.get(name);
      if (other !== undefined && linked !== undefined) {
        linked.id ??= uuidv7();
        edges[n]?.push(other);
        after.push({ id: linked.id, onFailure, succeeded: false });
      } else if (existing !== undefined) {
        after.push({ id: existing.id, onFailure, succeeded: succeededStatuses.includes(existing.status) });
      } else if (!found.has(item.job.clientRequestId ?? '')) {
        // A repeated request gets the existing job, whatever the status of the jobs it runs after.
        unknown.push({ field: `after[${place}]`, message: `there is no job ${JSON.stringify(name)}` });
      }
    }
    item.job.after = distinct(after);
    if (unknown.length > 0) problems[n] = invalidFields(unknown.slice(0, 20));
  }
  refuseCycles(items, edges, problems);
  return problems;
}

/** Keeps one edge per job, the first. */
function distinct(after: readonly Dependency[]): Dependency[] {
  return [...new Map([...after].reverse().map((edge) => [edge.id, edge])).values()].reverse();
}

interface Existing {
  id: string;
  clientRequestId: string | null;
  status: Status;
}

const findStatement = statement(`
  select id, client_request_id as "clientRequestId", status
    from ${tenant}.jobs
   where id = any(:ids::uuid[])
  union all
  select id, client_request_id, status
    from ${tenant}.jobs
   where client_request_id = any(:keys::text[])`);

const uuid = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i;

async function findReferences(
  db: Queryable,
  schema: Schema,
  items: readonly (LinkedJob | undefined)[],
  inBatch: ReadonlyMap<string, number>,
): Promise<Map<string, Existing>> {
  const wanted = new Set<string>();
  for (const item of items) {
    for (const given of item?.after ?? []) wanted.add(typeof given === 'string' ? given : given.job);
    if (item?.after !== undefined && item.job.clientRequestId !== undefined) wanted.add(item.job.clientRequestId);
  }
  const names = [...wanted];
  const keys = names.filter((name) => !inBatch.has(name) || items[inBatch.get(name) ?? -1]?.after !== undefined);
  const rows = await findStatement.query<Existing>(db, schema, { ids: names.filter((name) => uuid.test(name)), keys });
  const found = new Map<string, Existing>();
  for (const row of rows) if (row.clientRequestId !== null) found.set(row.clientRequestId, row);
  for (const row of rows) found.set(row.id, row);
  for (const name of names) {
    const known = found.get(name.toLowerCase());
    if (known !== undefined && !found.has(name)) found.set(name, known);
  }
  return found;
}

/** Only jobs of one batch can wait for each other, because an existing job never begins to wait for a new one. */
function refuseCycles(
  items: readonly (LinkedJob | undefined)[],
  edges: readonly (readonly number[])[],
  problems: (Problem | undefined)[],
): void {
  const left = edges.map((before) => new Set(before));
  const waiting = items.map(() => [] as number[]);
  for (const [n, before] of edges.entries()) for (const other of before) waiting[other]?.push(n);
  const free = items.flatMap((_, n) => (left[n]?.size === 0 ? [n] : []));
  const order: number[] = [];
  for (let n = free.pop(); n !== undefined; n = free.pop()) {
    order.push(n);
    for (const next of waiting[n] ?? []) {
      left[next]?.delete(n);
      if (left[next]?.size === 0) free.push(next);
    }
  }
  const ordered = new Set(order);
  for (const n of items.keys()) {
    if (ordered.has(n) || problems[n] !== undefined) continue;
    problems[n] = invalidFields([
      { field: 'after', message: 'jobs of the batch would wait for each other in a circle' },
    ]);
  }
  for (const n of order) {
    const refused = edges[n]?.find((other) => problems[other] !== undefined || items[other] === undefined);
    if (refused === undefined || problems[n] !== undefined) continue;
    const name = items[refused]?.job.clientRequestId ?? '';
    problems[n] = invalidFields([{ field: 'after', message: `job ${JSON.stringify(name)} of the batch was refused` }]);
  }
}
