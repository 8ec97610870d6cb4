// The contract between an attempt and the code that runs its handler: what it is given, and how it ends.
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
  /** Aborted when the grace is over: a thread is terminated; code in this process is left running. */
  kill: AbortSignal;
  /** For children: checks their payloads and fills in the defaults of their types. */
  jobTypes: JobTypes;
  /** Refuses children beyond the tenant's queue limit. */
  admit(children: NewJob[]): Promise<void>;
  /** Children were enqueued: wakes the workers. */
  onEnqueued?(enqueued: Enqueued): void;
  /** Aborts the signal now if the lease has expired, e.g. while the process was suspended. */
  check?(): void;
  /** Stops this attempt. */
  stop(reason: StopReason): void;
}
