// A job to enqueue, and the result of enqueuing it.

import type { Limit } from '../../tenants/named-settings.ts';
import type { Dependency } from '../flows/dependencies.ts';
import type { RequestColumn } from '../model/columns.ts';
import type { Job } from '../model/job.ts';
import type { Waiting } from '../model/waiting.ts';

type RequestedColumns = { [C in Exclude<RequestColumn, 'payload'>]?: NonNullable<Job[C]> | undefined };

/** A job to enqueue: every column that a request may set, and values from which columns are computed. */
export interface NewJob extends RequestedColumns {
  type: string;
  /** A value, or the JsonText of a large value. */
  payload: unknown;
  /** ISO time. If it is in the future by the database's clock, the job waits as PENDING. */
  runAt?: string | undefined;
  /** Equal for a replay of the same request. A different hash with the same `clientRequestId` is a conflict. */
  requestHash?: string | undefined;
  /** The hash under which an earlier version may have stored the same request. */
  earlierHash?: string | undefined;
  expiresInSeconds?: number | undefined;
  /** The names of its phases, if its type is known to have some. */
  phases?: readonly string[] | undefined;
  /** Jobs that this one runs after: existing jobs, or jobs of the same call that have an `id`. */
  after?: readonly Dependency[] | undefined;
  /** At most one job of the type holds the key at a time. */
  unique?: Unique | undefined;
  /** If set, the job is enqueued as WAITING for this. */
  waiting?: Waiting | undefined;
}

export type Enqueued =
  /**
   * `job.payload` may be a JsonText. `started` means that the job is RUNNING since the commit that inserted it; `job`
   * still shows the status before. `isBehind` means that it waits behind another job of its lane, whose end leads to
   * it, and that the enqueue made nothing else claimable.
   */
  | { kind: 'created'; job: Job; started?: boolean; isBehind?: boolean }
  /**
   * A job that was replayed together with others has no payload and result here. `unique`: the job holds the key of the
   * request.
   */
  | { kind: 'replayed'; job: Job; unique?: UniqueOutcome }
  /** The key was used for a different request, which created `job`. */
  | { kind: 'conflict'; job: Job };

/** The unique key of a job; see unique-jobs.ts. */
export interface Unique {
  key: string;
  /** How long the job holds the key: until it starts, until it ends, or for this many seconds. */
  until: 'started' | 'finished' | number;
  /** The effect of a second request: none, or it changes the waiting job. `debounce` also moves its time. */
  conflict: 'skip' | 'replace' | 'debounce';
  /** The tenant's limits: a changed payload may have other limit keys. */
  limits: readonly Limit[];
}

/** The effect of a request for a key that is held. A job that has started is not changed. */
export type UniqueOutcome = 'skipped' | 'replaced' | 'debounced';
