// The clients' log against the database: what was acknowledged exists (I3), a key has one effect (I8), no tenant reads
// another's (I9), and after the faults everything has ended (I10).
import { heldStatuses, isTerminal, type Status } from '../../../server/jobs/model/states.ts';
import type { Operation } from '../load/operations.ts';
import type { ReleaseRecord } from '../load/remote-worker.ts';
import type { Logged } from '../run-log.ts';
import type { EventRecord, JobRecord } from '../snapshot.ts';
import type { Violation } from './violation.ts';

export interface OperationsInput {
  operations: Logged<Operation>[];
  events: Logged<EventRecord>[];
  jobs: Logged<JobRecord>[];
  releases: Logged<ReleaseRecord>[];
}

export function checkOperations(input: OperationsInput): Violation[] {
  return [
    ...missingJobs(input),
    ...repeatedKeys(input),
    ...repeatedReleases(input),
    ...foreignReads(input),
    ...ignoredActions(input),
  ];
}

function* missingJobs({ operations, jobs }: OperationsInput): Generator<Violation> {
  const found = new Map(jobs.map((job) => [job.id, job]));
  for (const operation of operations) {
    if (operation.name !== 'enqueue' || operation.outcome !== 'ok') continue;
    const { job = '', place } = operation;
    const row = found.get(job);
    if (row === undefined) yield { invariant: 'I3', text: `job ${job} was acknowledged and is gone`, place };
    else if (!isTerminal(row.status as Status) && !(heldStatuses as readonly string[]).includes(row.status)) {
      const text = `job ${job} was acknowledged (${place}), and is ${row.status} although no fault is left`;
      yield { invariant: 'I10', text, place: row.place };
    }
  }
}

function* repeatedKeys({ operations, jobs }: OperationsInput): Generator<Violation> {
  const rows = new Map<string, Logged<JobRecord>>();
  for (const job of jobs) {
    if (job.client_request_id === null) continue;
    const other = rows.get(job.client_request_id);
    if (other) yield { invariant: 'I8', text: `key ${job.client_request_id} made two jobs`, place: job.place };
    rows.set(job.client_request_id, job);
  }
  const answers = new Map<string, Logged<Operation>>();
  for (const operation of operations) {
    if (operation.name !== 'enqueue' || operation.outcome !== 'ok' || operation.key === undefined) continue;
    const first = answers.get(operation.key);
    answers.set(operation.key, first ?? operation);
    if (first === undefined || first.job === operation.job) continue;
    const text = `key ${operation.key} was answered with job ${operation.job}, before with ${first.job} (${first.place})`;
    yield { invariant: 'I8', text, place: operation.place };
  }
}

function* repeatedReleases({ releases }: OperationsInput): Generator<Violation> {
  const answers = new Map<string, Logged<ReleaseRecord>>();
  for (const release of releases) {
    const first = answers.get(release.lease);
    answers.set(release.lease, first ?? release);
    if (first === undefined || (first.status === release.status && first.answer === release.answer)) continue;
    const text = `the release of ${release.lease} was answered with ${release.status} ${release.answer}, before with ${first.status} ${first.answer} (${first.place})`;
    yield { invariant: 'I8', text, place: release.place };
  }
}

function* foreignReads({ operations }: OperationsInput): Generator<Violation> {
  for (const { name, outcome, tenant, job, place } of operations) {
    if (name !== 'foreignRead' || outcome !== 'ok') continue;
    yield { invariant: 'I9', text: `tenant ${tenant} read job ${job} of another tenant`, place };
  }
}

/** What a person was promised is in the log: a job that was canceled ended as canceled, or had truly finished. */
function* ignoredActions({ operations, events, jobs }: OperationsInput): Generator<Violation> {
  const status = new Map(jobs.map((job) => [job.id, job.status]));
  const completed = new Set(events.filter(({ type }) => type === 'job.completed').map(({ job_id }) => job_id));
  for (const { name, outcome, job = '', place } of operations) {
    if (name !== 'cancel' || outcome !== 'ok') continue;
    if (status.get(job) === 'CANCELED' || completed.has(job)) continue;
    yield { invariant: 'I7', text: `the cancel of job ${job} was acknowledged, and it is ${status.get(job)}`, place };
  }
}
