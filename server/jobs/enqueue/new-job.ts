// A job to enqueue, and the result of enqueuing it.

import type { Limit } from '../../tenants/limit.ts';
import type { Dependency } from '../flows/dependencies.ts';
import type { RequestColumn } from '../model/columns.ts';
import type { Job } from '../model/job.ts';
import type { Waiting } from '../model/waiting.ts';

type RequestedColumns = { [C in Exclude<RequestColumn, 'payload'>]?: NonNullable<Job[C]> | undefined };

/** A job to enqueue: every column that a request may set, and values from which columns are computed. */
export interface NewJob extends RequestedColumns {
  type: string;
  /** A value, or the JsonText of a large one. */
  payload: unknown;
  /** ISO time; in the future by the database's clock: the job waits as PENDING. */
  runAt?: string | undefined;
  /** Equal for a replay of the same request; another hash with the same `clientRequestId` is a conflict. */
  requestHash?: string | undefined;
  /** The same request may have been stored with this hash, by an earlier version. */
  earlierHash?: string | undefined;
  expiresInSeconds?: number | undefined;
  /** Names of its phases, when its type is known to have some. */
  phases?: readonly string[] | undefined;
  /** Jobs that it runs after: existing ones, or others of the same call that have an `id`. */
  after?: readonly Dependency[] | undefined;
  /** At most one job of the type holds the key at a time. */
  unique?: Unique | undefined;
  /** It is enqueued as WAITING for this. */
  waiting?: Waiting | undefined;
}

export type Enqueued =
  /** `job.payload` may be a JsonText. `started`: it is RUNNING with the commit that inserted it. `job` still shows it as it was enqueued. */
  | { kind: 'created'; job: Job; started?: boolean }
  /** Without payload and result if it was replayed together with others. `unique`: it holds the key of the request. */
  | { kind: 'replayed'; job: Job; unique?: UniqueOutcome }
  /** The key was used for another request, which made `job`. */
  | { kind: 'conflict'; job: Job };

/** What makes a job unique; see unique-jobs.ts. */
export interface Unique {
  key: string;
  /** How long the job holds the key: until it starts, until it has ended, or for this many seconds. */
  until: 'started' | 'finished' | number;
  /** What a second request does: nothing, or it changes the job that waits; `debounce` moves its time too. */
  conflict: 'skip' | 'replace' | 'debounce';
  /** Of the tenant: a changed payload may have other keys. */
  limits: readonly Limit[];
}

/** The effect of a request whose key was held. A job that has started is not changed. */
export type UniqueOutcome = 'skipped' | 'replaced' | 'debounced';
