// Enqueues one or many jobs in one transaction, idempotent by `clientRequestId`. Jobs without a target need one
// statement. For jobs with targets, the lanes are locked, numbered and read before the insert.

import type { Database, Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { dueMessage, sendNotification } from '../../database/notifications/notifications.ts';
import { retryConflicts } from '../../database/sql-errors.ts';
import { problem } from '../../kernel/errors.ts';
import { JsonText } from '../../kernel/json/json-text.ts';
import type { Tenant } from '../../tenants/tenant.ts';
import { insertPhases } from '../attempt/phases.ts';
import { type Dependency, insertDependencies } from '../flows/dependencies.ts';
import { takeNumbersForInsert } from '../lanes/join-lanes.ts';
import { promote } from '../lanes/lane.ts';
import type { Job } from '../model/job.ts';
import { transitions } from '../model/states.ts';
import { readJobsByRequestIds } from '../read/read-jobs.ts';
import {
  type Inserted,
  type InsertOptions,
  type InsertPart,
  insertJobs,
  type LaneInsert,
  type PlacedJob,
  type Reservation,
  toInsertParts,
} from './insert-jobs.ts';
import type { Enqueued, NewJob } from './new-job.ts';
import { findFutureJobs, fitsOneFlight, place, placeByInsert, placeInLanes } from './place-jobs.ts';
import { insertUnique } from './unique-jobs.ts';

export type { Enqueued, NewJob };

/** Enqueues for routes; the daemon's group commit implements it. */
export interface Enqueuer {
  enqueue(tenant: Tenant, newJobs: NewJob[], actor: string): Promise<Enqueued[]>;
}

export interface EnqueueOptions {
  /** If it returns slots, the jobs start in the insert. */
  reserve?(jobs: readonly NewJob[]): Reservation | undefined;
  /** The longest wait for a locked lane. */
  lockTimeoutMs?: number;
}

/** Enqueues all of `newJobs` or none. Results are in the order given. */
export async function enqueue(
  db: Database,
  schema: Schema,
  newJobs: NewJob[],
  actor: string,
  options: EnqueueOptions = {},
): Promise<Enqueued[]> {
  if (newJobs.length === 0) return [];
  return retryConflicts(async () => {
    const enqueued = fitsOneFlight(newJobs) ? await enqueueInOneFlight(db, schema, newJobs, actor, options) : undefined;
    return enqueued ?? db.transaction((tx) => enqueueIn(tx, schema, newJobs, actor), options);
  });
}

/**
 * Locks the lanes and inserts the jobs, without waiting for an answer in between; jobs without a lane or a key need one
 * statement. Returns undefined, and stores no job, if that is not possible.
 */
async function enqueueInOneFlight(
  db: Database,
  schema: Schema,
  newJobs: NewJob[],
  actor: string,
  { reserve, lockTimeoutMs }: EnqueueOptions,
): Promise<Enqueued[] | undefined> {
  const { rows, counts } = placeByInsert(newJobs);
  const [part, ...more] = await toInsertParts(rows);
  if (part === undefined || more.length > 0) return undefined;
  const mayStart = newJobs.every((job) => job.limitKeys === undefined && job.runAt === undefined);
  const reservation = mayStart ? reserve?.(newJobs.filter((_, n) => rows[n]?.laneHead)) : undefined;
  const inserted = await startIfInserted(reservation, () => {
    const lanes: InsertOptions = counts.size > 0 ? { lanes: 'joined', targetIds: [...counts.keys()] } : {};
    const insert = (tx: Queryable) => insertJobs(tx, schema, part, actor, { reservation, ...lanes });
    // Only a lock on a lane or on a key can make it wait.
    if (counts.size === 0 && !newJobs.some(isKnown)) return insert(db);
    return db.pipelinedTransaction(
      async (tx) => {
        const taken = takeNumbersForInsert(tx, schema, counts);
        return (await Promise.all([insert(tx), taken]))[0];
      },
      { ...(lockTimeoutMs !== undefined && { lockTimeoutMs }) },
    );
  });
  if (inserted === undefined) return undefined;
  const created = new Map(inserted.map((one) => [one.job.id, one]));
  const existing = await findExisting(db, schema, rows, created);
  return rows.map((row, n) => {
    const one = created.get(row.id);
    if (one === undefined) return replayed(newJobs[n], row, existing);
    return { ...one, kind: 'created', job: withGivenText(one.job, row) };
  });
}

/** Passes the result to the reservation: the jobs that have started, or why it is unknown whether they have. */
async function startIfInserted(
  reservation: Reservation | undefined,
  insert: () => Promise<Inserted[] | undefined>,
): Promise<Inserted[] | undefined> {
  try {
    const inserted = await insert();
    reservation?.started(startedJobs(inserted ?? [], reservation));
    return inserted;
  } catch (error) {
    reservation?.failed(error);
    throw error;
  }
}

function startedJobs(inserted: readonly Inserted[], { leaseId, owner: leaseOwner }: Reservation): Job[] {
  const status = transitions.start.to;
  return inserted.flatMap(({ job, started }) =>
    started ? [{ ...job, status, attempt: 1, startedAt: job.createdAt, leaseId, leaseOwner }] : [],
  );
}

/** An earlier request may have created the job. */
function isKnown({ clientRequestId, unique }: NewJob): boolean {
  return clientRequestId !== undefined || unique !== undefined;
}

/** Enqueues every job or none: a key that was used for a different request rolls back the whole batch. */
export async function enqueueAllOrNone(
  db: Database,
  schema: Schema,
  newJobs: NewJob[],
  actor: string,
): Promise<Enqueued[]> {
  return retryConflicts(() =>
    db.transaction(async (tx) => {
      const results = await enqueueIn(tx, schema, newJobs, actor);
      const index = results.findIndex((result) => result.kind === 'conflict');
      const conflict = results[index];
      if (conflict !== undefined) throw idempotencyConflict(conflict, `jobs[${index}]`);
      return results;
    }),
  );
}

export function idempotencyConflict(enqueued: Enqueued, field = 'client_request_id') {
  return problem(
    'IDEMPOTENCY_CONFLICT',
    'This idempotency key was used with another request; use a new key for a new request.',
    { field, job_id: enqueued.job.id },
  );
}

/** Keeps the text of a large payload for the answer instead of serializing it again. */
function withGivenText(job: Job, given: PlacedJob): Job {
  return given.payload instanceof JsonText ? { ...job, payload: given.payload } : job;
}

/** `enqueue` inside the caller's transaction. */
export async function enqueueIn(tx: Queryable, schema: Schema, newJobs: NewJob[], actor: string): Promise<Enqueued[]> {
  const insert = (jobs: NewJob[]) => insertInLanes(tx, schema, jobs, actor);
  const hasKeys = newJobs.some((job) => job.unique !== undefined);
  return hasKeys ? insertUnique(tx, schema, newJobs, actor, insert) : insert(newJobs);
}

async function insertInLanes(tx: Queryable, schema: Schema, jobs: NewJob[], actor: string): Promise<Enqueued[]> {
  const future = await findFutureJobs(tx, schema, jobs);
  const placed = await placeInLanes(tx, schema, jobs, future, actor);
  return insertPlaced(tx, schema, jobs, placed, actor);
}

/**
 * `enqueue` in a transaction of the caller, which may stay open for long. It takes no lock that another enqueue, claim
 * or finish waits for. A job with a target does not enter its lane before the commit: it is PENDING and due at once.
 */
export async function enqueueInCallersTransaction(
  tx: Queryable,
  tenant: Pick<Tenant, 'slug' | 'schema'>,
  newJobs: NewJob[],
  actor: string,
): Promise<Enqueued[]> {
  const enqueued = await insertUnique(tx, tenant.schema, newJobs, actor, async (jobs) => {
    const future = await findFutureJobs(tx, tenant.schema, jobs);
    const placed = jobs.map((job, position) => {
      const isLater = future.has(position) || job.targetId !== undefined;
      const { to: status } = isLater ? transitions.schedule : transitions.enqueue;
      return place(job, status, job.targetId === undefined, null, '0');
    });
    return insertPlaced(tx, tenant.schema, jobs, placed, actor, 'outside');
  });
  // The notification is delivered with the commit, and once even if it is sent several times.
  await sendNotification(tx, dueMessage(tenant.slug));
  return enqueued;
}

type GivenPlace = Exclude<LaneInsert, 'joined'>;

async function insertPlaced(
  tx: Queryable,
  schema: Schema,
  newJobs: NewJob[],
  placed: PlacedJob[],
  actor: string,
  lanes: GivenPlace = 'placed',
): Promise<Enqueued[]> {
  const made = await insertParts(tx, schema, await toInsertParts(placed), actor, lanes);
  const inserted = new Map(made.map((job) => [job.id, job]));
  await insertPhases(tx, schema, phasesOf(newJobs, placed, inserted));
  const missing = placed.filter((row) => !inserted.has(row.id));
  if (missing.length === 0) {
    await insertDependencies(tx, schema, dependenciesOf(newJobs, placed, inserted, new Map()));
    return placed.map((row) => ({ kind: 'created', job: inserted.get(row.id) as Job }));
  }

  const existing = await findExisting(tx, schema, placed, inserted);
  await insertDependencies(tx, schema, dependenciesOf(newJobs, placed, inserted, existing));
  // A replayed job may have been placed as the head of a lane that it never entered.
  const opened = lanes === 'outside' ? [] : missing.flatMap((row) => (row.targetId == null ? [] : [row.targetId]));
  await promote(tx, schema, [...new Set(opened)].sort());
  return placed.map((row, n) => {
    const created = inserted.get(row.id);
    return created ? { kind: 'created', job: created } : replayed(newJobs[n], row, existing);
  });
}

function replayed(asked: NewJob | undefined, row: PlacedJob, existing: Map<string, Job>): Enqueued {
  const job = existing.get(row.clientRequestId as string) as Job;
  return { kind: isSameRequest(asked, job) ? 'replayed' : 'conflict', job };
}

function isSameRequest(asked: NewJob | undefined, { requestHash }: Job): boolean {
  if (requestHash === null) return asked?.requestHash === undefined;
  return requestHash === asked?.requestHash || requestHash === asked?.earlierHash;
}

async function insertParts(
  tx: Queryable,
  schema: Schema,
  parts: InsertPart[],
  actor: string,
  lanes: GivenPlace,
): Promise<Job[]> {
  const jobs: Job[] = [];
  for (const part of parts) {
    const inserted = await insertJobs(tx, schema, part, actor, { lanes });
    jobs.push(...(inserted ?? []).map(({ job }) => job));
  }
  return jobs;
}

function phasesOf(newJobs: NewJob[], placed: PlacedJob[], inserted: Map<string, Job>) {
  return newJobs.flatMap(({ phases }, position) => {
    const id = placed[position]?.id;
    return phases !== undefined && id !== undefined && inserted.has(id) ? [{ id, phases }] : [];
  });
}

/**
 * Returns the edges of the jobs that were inserted. Another job of the call may exist already under its key, with a
 * different id.
 */
function dependenciesOf(
  newJobs: NewJob[],
  placed: PlacedJob[],
  inserted: Map<string, Job>,
  existing: Map<string, Job>,
): (Dependency & { jobId: string })[] {
  if (newJobs.every(({ after }) => after === undefined)) return [];
  const known = new Map(placed.map(({ id, clientRequestId }) => [id, existing.get(clientRequestId ?? '')?.id ?? id]));
  return newJobs.flatMap(({ after = [] }, n) => {
    const jobId = placed[n]?.id;
    if (jobId === undefined || !inserted.has(jobId)) return [];
    return after.map((edge) => ({ ...edge, jobId, id: known.get(edge.id) ?? edge.id }));
  });
}

/** Reads the jobs of the rows that were not inserted, by their request ids. */
async function findExisting(
  db: Queryable,
  schema: Schema,
  rows: PlacedJob[],
  inserted: ReadonlyMap<string, unknown>,
): Promise<Map<string, Job>> {
  const missing = rows.filter((row) => !inserted.has(row.id));
  if (missing.length === 0) return new Map();
  // The documents of one job are small enough to read with it, but those of a repeated batch could be a gigabyte.
  const found = await readJobsByRequestIds(
    db,
    schema,
    missing.map((row) => row.clientRequestId as string),
    { withDocuments: missing.length === 1 },
  );
  return new Map(found.map((job) => [job.clientRequestId as string, job]));
}
