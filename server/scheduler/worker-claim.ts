// Claims of remote workers: which jobs a worker may claim, and the wait for them.

import type { Database } from '../database/database.ts';
import { isConnectionError } from '../database/sql-errors.ts';
import { claimRemoteJobs } from '../jobs/claim/claim.ts';
import { releaseClaim } from '../jobs/claim/release-claim.ts';
import { requeueClaims } from '../jobs/finish/recover.ts';
import { openGate } from '../jobs/limits/gate.ts';
import { claimantOf } from '../jobs/limits/limit-keys.ts';
import { monotonicMs } from '../kernel/clock.ts';
import { newId } from '../kernel/ids.ts';
import type { Tenant } from '../tenants/tenant.ts';
import type { SchedulerJob } from './api-names.ts';
import type { ClaimWaiters } from './claim-waiters.ts';
import { readSchedulerJobs } from './worker-jobs.ts';

// The pause before waiting claims are tried again after one that skipped locked jobs. A lane may stay locked for long.
const skipPauseMs = 50;

export interface WorkerClaim {
  /** The API key of the request. */
  keyId: string;
  queue: string;
  workerId: string;
  limit: number;
  jobTypes?: readonly string[] | undefined;
  maxCostUnits?: number | undefined;
  /** `gpu_available: true` satisfies a job's `gpu_required`. */
  capabilities: Record<string, unknown>;
  claimSeconds: number;
  waitMs: number;
  /** Aborted when the client disconnects. */
  signal: AbortSignal;
  /** A waiting claim has no turn at the database; each of its attempts takes one. */
  withTurn<T>(work: () => Promise<T>): Promise<T>;
}

/** Returns jobs that are now CLAIMED by the worker; none if no job came within `waitMs`. */
export async function claimForWorker(
  db: Database,
  waiters: ClaimWaiters,
  tenant: Pick<Tenant, 'schema' | 'limits'>,
  claim: WorkerClaim,
): Promise<SchedulerJob[]> {
  const met = metConstraints(claim.capabilities);
  const jobTypes = claim.jobTypes && [...new Set(claim.jobTypes)].sort();
  const jobs = await waiters.claim({
    schema: tenant.schema,
    keyId: claim.keyId,
    queue: claim.queue,
    criteria: JSON.stringify([jobTypes, claim.maxCostUnits, Object.keys(met).sort()]),
    waitMs: claim.waitMs,
    signal: claim.signal,
    attempt: () =>
      claim.withTurn(async () => {
        await openForWorker(db, waiters, tenant, claim);
        return attempt(db, waiters, tenant, claim, met);
      }),
  });
  return jobs ?? [];
}

/** Opens jobs whose limits have room. When a token is due, the waiting claims are tried again. */
async function openForWorker(
  db: Database,
  waiters: ClaimWaiters,
  { schema, limits }: Pick<Tenant, 'schema' | 'limits'>,
  { queue, limit, signal }: WorkerClaim,
): Promise<void> {
  if (limits.length === 0 || signal.aborted) return;
  const claimants = [claimantOf({ remote: true, type: '', queue })];
  const { nextMs } = await openGate(db, schema, { limits, claimants, room: limit });
  if (nextMs !== undefined) waiters.wakeIn(schema, queue, nextMs);
}

async function attempt(
  db: Database,
  waiters: ClaimWaiters,
  { schema }: Pick<Tenant, 'schema'>,
  claim: WorkerClaim,
  met: Record<string, boolean>,
): Promise<SchedulerJob[] | undefined> {
  // A client that disconnected claims nothing.
  if (claim.signal.aborted) return undefined;
  const leaseId = newId();
  const sentAt = monotonicMs();
  const { jobs, hasSkipped } = await claimRemoteJobs(db, schema, {
    leaseId,
    owner: claim.workerId,
    queue: claim.queue,
    limit: claim.limit,
    leaseSeconds: claim.claimSeconds,
    types: claim.jobTypes,
    maxCostUnits: claim.maxCostUnits,
    met,
  }).catch((error: unknown) => {
    // The request may have claimed jobs for which no lease will be requested. If the release fails too, the claim
    // expires.
    if (isConnectionError(error)) {
      void releaseClaim(db, schema, { leaseId, kind: 'claim', actor: `worker:${claim.workerId}` }).catch(() => {});
    }
    throw error;
  });
  if (hasSkipped) waiters.wakeIn(schema, claim.queue, skipPauseMs);
  if (jobs.length === 0) return undefined;
  // The process may have been frozen since Postgres answered.
  const tooLate = monotonicMs() - sentAt >= claim.claimSeconds * 1000;
  if (claim.signal.aborted || tooLate) {
    // The client disconnected during the claim, and other workers need not wait until it expires.
    const lease = { id: leaseId, owner: claim.workerId };
    const reason = tooLate ? 'claim expired' : 'the worker disconnected';
    await db.transaction((tx) => requeueClaims(tx, schema, lease, jobs, `worker:${claim.workerId}`, reason));
    return undefined;
  }
  return readSchedulerJobs(
    db,
    schema,
    jobs.map((job) => job.id),
  );
}

function metConstraints(capabilities: Record<string, unknown>): Record<string, boolean> {
  const met: Record<string, boolean> = {};
  for (const [name, value] of Object.entries(capabilities)) {
    if (value === true && name.endsWith('_available')) met[name.replace(/_available$/, '_required')] = true;
  }
  return met;
}
