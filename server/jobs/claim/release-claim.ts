// A claim whose answer never came: whether it took jobs is unknown. If it did, none of them has begun, so they go back
// to where they stood and the attempt is not counted. If its bytes are still on their way, they must not take any later.
import { type Database, type Queryable, retryConflicts } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { finishAttempts } from '../finish/finish.ts';
import { requeueClaims } from '../finish/recover.ts';
import { requeueUnstarted } from '../finish/requeue-unstarted.ts';
import { transition } from '../transition.ts';

const lostAnswer = 'the answer to the claim was lost';

interface TakenJob {
  id: string;
  owner: string;
  target_id: string | null;
}

/** Returns how many jobs went back. After it the claim has no effect, whenever it arrives. */
export async function releaseClaim(
  db: Database,
  schema: Schema,
  { leaseId, kind, actor }: { leaseId: string; kind: 'local' | 'claim'; actor: string },
): Promise<number> {
  if (await reserveLeaseId(db, schema, leaseId, kind, actor)) return 0;
  const taken = await db.query<TakenJob>(
    `select j.id, l.owner, j.target_id from ${schema}.leases l join ${schema}.jobs j on j.id = any(l.job_ids)
      where l.id = $1 and l.state = 'ACTIVE' and j.lease_id = l.id and j.status = $2`,
    [leaseId, transition(kind === 'local' ? 'start' : 'claim').to],
  );
  if (taken.length === 0) return kind === 'local' ? requeueExpired(db, schema, leaseId, actor) : 0;
  if (kind === 'claim') return giveBackRemote(db, schema, leaseId, taken, actor);
  const outcome = { kind: 'requeue' as const, reason: lostAnswer };
  const items = taken.map((job) => ({ jobId: job.id, leaseId, targetId: job.target_id, outcome }));
  const { accepted } = await finishAttempts(db, schema, items, { actor, endedLeases: [leaseId] });
  return accepted.size;
}

/**
 * True if the claim has not happened, and never will: a row in a final state has its lease's id, so that the insert of
 * the claim's lease conflicts and its statement fails as a whole. A claim that is being committed is waited for.
 */
async function reserveLeaseId(
  db: Queryable,
  schema: Schema,
  leaseId: string,
  kind: 'local' | 'claim',
  actor: string,
): Promise<boolean> {
  const rows = await db.query(
    `insert into ${schema}.leases (id, kind, owner, job_ids, ttl_seconds, state, expires_at, released_at)
     values ($1, $2, $3, '{}', 0, 'RELEASED', now(), now()) on conflict (id) do nothing returning id`,
    [leaseId, kind, actor],
  );
  return rows.length > 0;
}

/** A sweeper was faster: it has taken the jobs for lost. */
async function requeueExpired(db: Database, schema: Schema, leaseId: string, actor: string): Promise<number> {
  const rows = await db.query<{ id: string; target_id: string | null }>(
    `select j.id, j.target_id from ${schema}.leases l join ${schema}.jobs j on j.id = any(l.job_ids)
      where l.id = $1 and l.state = 'EXPIRED' and j.lease_id = l.id and ${transition('requeueUnstarted').guard()}`,
    [leaseId],
  );
  const jobs = rows.map((row) => ({ id: row.id, targetId: row.target_id }));
  return requeueUnstarted(db, schema, { leaseId, jobs, actor, reason: lostAnswer });
}

async function giveBackRemote(
  db: Database,
  schema: Schema,
  leaseId: string,
  taken: TakenJob[],
  actor: string,
): Promise<number> {
  const jobs = taken.map((job) => ({ id: job.id, targetId: job.target_id }));
  const lease = { id: leaseId, owner: taken[0]?.owner ?? '' };
  return retryConflicts(() => db.transaction((tx) => requeueClaims(tx, schema, lease, jobs, actor, lostAnswer)));
}
