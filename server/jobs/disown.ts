// A claim whose answer never came: whether it took jobs is unknown. If it did, none of them has begun,
// so they go back to where they stood and the attempt is not counted.
import type { Database } from '../database/database.ts';
import type { Schema } from '../database/identifiers.ts';
import { settle } from './settle.ts';

/** Returns how many jobs went back. */
export async function disownClaim(db: Database, schema: Schema, leaseId: string, actor: string): Promise<number> {
  const taken = await db.query<{ id: string; target_id: string | null }>(
    `select j.id, j.target_id from ${schema}.leases l join ${schema}.jobs j on j.id = any(l.job_ids)
      where l.id = $1 and l.state = 'ACTIVE' and j.lease_id = l.id and j.status = 'RUNNING'`,
    [leaseId],
  );
  if (taken.length === 0) return 0;
  const outcome = { kind: 'giveBack' as const, reason: 'the answer to the claim was lost' };
  const items = taken.map((job) => ({ jobId: job.id, leaseId, targetId: job.target_id, outcome }));
  const { accepted } = await settle(db, schema, items, { actor, endedLeases: [leaseId] });
  return accepted.size;
}
