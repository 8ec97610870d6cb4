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
import { promote } from '../lanes/lane.ts';
import type { Job } from '../model/job.ts';
import { transitions } from '../model/states.ts';
import { readJobsByRequestIds } from '../read/read-jobs.ts';
import { type InsertPart, insertJobs, type PlacedJob, type Reservation, toInsertParts } from './insert-jobs.ts';
import type { Enqueued, NewJob } from './new-job.ts';
import { findFutureJobs, isFree, place, placeInLanes, withoutLane } from './place-jobs.ts';
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
  { reserve, ...options }: EnqueueOptions = {},
): Promise<Enqueued[]> {
  if (newJobs.length === 0) return [];
  return retryConflicts(async () => {
    // No earlier request can have created these jobs, and no other row is read or written, so one statement is enough.
    if (newJobs.every((job) => isFree(job) && !isKnown(job) && job.phases === undefined)) {
      const [part, ...more] = await toInsertParts(newJobs.map(withoutLane));
      if (part === undefined) return [];
      if (more.length === 0) {
        const mayStart = newJobs.every((job) => job.limitKeys === undefined && job.runAt === undefined);
        const reservation = mayStart ? reserve?.(newJobs) : undefined;
        if (reservation !== undefined) return enqueueStarted(db, schema, part, actor, reservation);
        const inserted = await insertJobs(db, schema, part, actor);
        return inserted.map((job) => ({ kind: 'created', job }));
      }
      const inserted = await db.transaction((tx) => insertParts(tx, schema, [part, ...more], actor));
      return inserted.map((job) => ({ kind: 'created', job }));
    }
    // Nothing follows the insert, so it is sent together with the COMMIT.
    if (newJobs.every((job) => !isKnown(job) && job.phases === undefined && job.after === undefined)) {
      return db.transactionInTwoFlights((tx) => placeBeforeInsert(tx, schema, newJobs, actor), options);
    }
    return db.transaction((tx) => enqueueIn(tx, schema, newJobs, actor), options);
  });
}

/** Locks and numbers the lanes, and returns the insert. */
async function placeBeforeInsert(tx: Queryable, schema: Schema, newJobs: NewJob[], actor: string) {
  const future = await findFutureJobs(tx, schema, newJobs);
  const parts = await toInsertParts(await placeInLanes(tx, schema, newJobs, future, actor));
  const last = parts.pop();
  const inserted = await insertParts(tx, schema, parts, actor);
  return async (end: Queryable): Promise<Enqueued[]> => {
    if (last !== undefined) inserted.push(...(await insertJobs(end, schema, last, actor)));
    return inserted.map((job) => ({ kind: 'created', job }));
  };
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

async function enqueueStarted(
  db: Database,
  schema: Schema,
  part: InsertPart,
  actor: string,
  reservation: Reservation,
): Promise<Enqueued[]> {
  try {
    const jobs = await insertJobs(db, schema, part, actor, { reservation });
    const { leaseId, owner: leaseOwner } = reservation;
    const status = transitions.start.to;
    reservation.started(
      jobs.map((job) => ({ ...job, status, attempt: 1, startedAt: job.createdAt, leaseId, leaseOwner })),
    );
    return jobs.map((job, n) => ({ kind: 'created', job: withGivenText(job, part.rows[n]), started: true }));
  } catch (error) {
    reservation.failed(error);
    throw error;
  }
}

/** Keeps the text of a large payload for the answer instead of serializing it again. */
function withGivenText(job: Job, given: PlacedJob | undefined): Job {
  const isText = given?.id === job.id && given.payload instanceof JsonText;
  return isText ? { ...job, payload: given.payload } : job;
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

async function insertPlaced(
  tx: Queryable,
  schema: Schema,
  newJobs: NewJob[],
  placed: PlacedJob[],
  actor: string,
  lanes: 'placed' | 'outside' = 'placed',
): Promise<Enqueued[]> {
  const made = await insertParts(tx, schema, await toInsertParts(placed), actor, lanes);
  const inserted = new Map(made.map((job) => [job.id, job]));
  await insertPhases(tx, schema, phasesOf(newJobs, placed, inserted));
  const missing = placed.filter((row) => !inserted.has(row.id));
  if (missing.length === 0) {
    await insertDependencies(tx, schema, dependenciesOf(newJobs, placed, inserted, new Map()));
    return placed.map((row) => ({ kind: 'created', job: inserted.get(row.id) as Job }));
  }

  const existing = await findByRequestIds(tx, schema, missing);
  await insertDependencies(tx, schema, dependenciesOf(newJobs, placed, inserted, existing));
  // A replayed job may have been placed as the head of a lane that it never entered.
  const opened = lanes === 'outside' ? [] : missing.flatMap((row) => (row.targetId == null ? [] : [row.targetId]));
  await promote(tx, schema, [...new Set(opened)].sort());
  return placed.map((row, n) => {
    const created = inserted.get(row.id);
    if (created) return { kind: 'created', job: created };
    const job = existing.get(row.clientRequestId as string) as Job;
    return { kind: isSameRequest(newJobs[n], job) ? 'replayed' : 'conflict', job };
  });
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
  lanes: 'placed' | 'outside' = 'placed',
): Promise<Job[]> {
  const jobs: Job[] = [];
  for (const part of parts) jobs.push(...(await insertJobs(tx, schema, part, actor, { lanes })));
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

async function findByRequestIds(tx: Queryable, schema: Schema, rows: PlacedJob[]): Promise<Map<string, Job>> {
  // The documents of one job are small enough to read with it, but those of a repeated batch could be a gigabyte.
  const found = await readJobsByRequestIds(
    tx,
    schema,
    rows.map((row) => row.clientRequestId as string),
    { withDocuments: rows.length === 1 },
  );
  return new Map(found.map((job) => [job.clientRequestId as string, job]));
}
