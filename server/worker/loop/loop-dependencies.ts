// What a tenant's loop is given by whoever composes it, and what it tells them.
import type { Database } from '../../database/database.ts';
import type { Claimed, ClaimRequest } from '../../jobs/claim/claim.ts';
import type { Outcome } from '../../jobs/finish/outcome.ts';
import type { Job } from '../../jobs/model/job.ts';
import type { Logger } from '../../kernel/logger.ts';
import type { Tenant } from '../../tenants/tenant.ts';
import type { Attempt } from '../attempt/attempt.ts';
import type { HandlerEnd } from '../attempt/run-handler.ts';
import type { Heartbeat } from '../heartbeat/heartbeat.ts';
import type { Slots } from './slots.ts';

export interface LoopDependencies {
  db: Database;
  slots: Slots;
  heartbeat: Heartbeat;
  logger: Logger;
  workerId: string;
  leaseSeconds: number;
  cancelGraceMs: number;
  unresponsiveMaxMs: number;
  tokenLimit: number;
  /** Of an attempt, where neither the job nor its tenant has one; 0: no limit. */
  timeoutSeconds: number;
  tenantConcurrency: number;
  types(): readonly string[];
  claim(tenant: Tenant, request: ClaimRequest): Promise<Claimed>;
  run(tenant: Tenant, attempt: Attempt): Promise<HandlerEnd>;
  observe: LoopObserver;
  /** A job may be claimed. `elsewhere`: not by this daemon, at least not now. */
  onRunnable(tenant: Tenant, elsewhere: boolean): void;
}

/** `outcome` is undefined if it was not accepted: the job was no longer ours. */
export interface EndedAttempt {
  job: Job;
  outcome: Outcome | undefined;
  seconds: number;
}

/** What the loop tells to whoever counts. */
export interface LoopObserver {
  claimed(tenant: Tenant, jobs: Job[]): void;
  claimFailed(tenant: Tenant): void;
  started(tenant: Tenant, job: Job): void;
  finished(tenant: Tenant, ended: readonly EndedAttempt[]): void;
  /** A handler was told to stop and still runs: its job was fenced off, or its lane released with it still running. */
  unresponsive(tenant: Tenant, job: Job, what: 'fenced' | 'released'): void;
}
