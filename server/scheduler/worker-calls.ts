// The durable calls of remote workers. They use the same rows and statements as handlers in a daemon, under a remote
// lease.
import type { Database } from '../database/database.ts';
import type { Schema } from '../database/identifiers.ts';
import { isHeld } from '../jobs/claim/lease.ts';
import type { Lease, SchedulerJob } from './api-names.ts';
import { getSchedulerJob } from './read-worker-jobs.ts';
import { getOwnLease, type LeaseHolder, leaseOver } from './worker-lease.ts';

/** Runs a fenced write of the holder. `write` returns undefined if the lease no longer owns the job. */
export async function writeAsHolder<T>(
  db: Database,
  schema: Schema,
  holder: LeaseHolder,
  write: () => Promise<T | undefined>,
): Promise<T> {
  await requireActive(db, schema, holder);
  // While a tenant moves between nodes, a fenced write can miss an existing row. This checks the row and writes again.
  const written = (await write()) ?? ((await isHeld(db, schema, holder)) ? await write() : undefined);
  if (written === undefined) throw leaseOver({ state: 'EXPIRED' });
  return written;
}

/** Returns the job of a lease that its worker holds now. */
export async function getHeldJob(db: Database, schema: Schema, holder: LeaseHolder): Promise<SchedulerJob> {
  await requireActive(db, schema, holder);
  const job = await getSchedulerJob(db, schema, holder.jobId);
  if (job.leaseId !== holder.leaseId) throw leaseOver({ state: 'EXPIRED' });
  return job;
}

async function requireActive(db: Database, schema: Schema, holder: LeaseHolder): Promise<Lease> {
  const lease = await getOwnLease(db, schema, holder);
  if (lease.state !== 'ACTIVE' || lease.overdue) throw leaseOver(lease);
  return lease;
}
