// Reads stop requests now, for handlers that are about to begin long after their claim. A job is RUNNING from its claim
// on, so a cancel or pause may have been acknowledged since then.
import type { Schema } from '../../database/identifiers.ts';
import { renewLeases } from '../../jobs/claim/lease.ts';
import { monotonicMs } from '../../kernel/clock.ts';
import type { WorkerContext } from '../worker-context.ts';

// If that many answers are late, the database is slow. Handlers must begin some time.
const maxReads = 3;

/**
 * Renews the leases, which stops the attempts that were asked to. Reads again if an answer is late, for example because
 * the process was suspended. Resolves with the leases still in time, or after the last late answer.
 */
export async function readStopRequests(
  { db, config, heartbeat }: Pick<WorkerContext, 'db' | 'config' | 'heartbeat'>,
  schema: Schema,
  leaseIds: readonly string[],
): Promise<void> {
  const isLate = () => leaseIds.some((leaseId) => heartbeat.startUntilMs(leaseId) <= monotonicMs());
  for (let reads = 0; reads < maxReads && isLate(); reads++) {
    const sentAt = process.hrtime.bigint();
    const live = await renewLeases(db, schema, leaseIds, config.leaseSeconds);
    heartbeat.renewed({ schema, leaseIds, sentAt, live });
  }
}
