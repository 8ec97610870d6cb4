// What one attempt is given, and how it ends: the contract between the executor and the handlers.
import type { Database } from '../../database/database.ts';
import type { Enqueued, NewJob } from '../../jobs/enqueue/enqueue.ts';
import type { JobTypes } from '../../jobs/enqueue/job-types.ts';
import type { Job, JobError } from '../../jobs/model/job.ts';
import type { Config } from '../../kernel/config.ts';
import type { Logger } from '../../kernel/logger.ts';
import type { Tenant } from '../../tenants/tenant.ts';
import type { StopReason } from './stop-reason.ts';

export type HandlerEnd =
  | { kind: 'completed'; result: unknown }
  | { kind: 'partial'; result: unknown; error?: JobError }
  | { kind: 'failed'; error: JobError; recoverable: boolean };

export interface HandlerRun {
  db: Database;
  tenant: Tenant;
  job: Job;
  leaseId: string;
  logger: Logger;
  config: Config;
  /** Aborted with a StopReason when the handler must stop. */
  signal: AbortSignal;
  /** Aborted when waiting is over: a thread is ended; code in this process is left behind. */
  kill: AbortSignal;
  /** For children: checks their payloads and fills in what their types say. */
  jobTypes: JobTypes;
  /** Refuses children beyond what may wait in the tenant. */
  admit(children: NewJob[]): Promise<void>;
  /** Told of children that were put in, so that somebody wakes up for them. */
  onEnqueued?(enqueued: Enqueued): void;
  /** Aborts the signal now if the lease has run out, e.g. while the process stood still. */
  check?(): void;
  /** Asks the executor to stop this attempt. */
  stop(reason: StopReason): void;
}
