// Fences off a handler that was asked to stop and still runs. Its job stays RUNNING and keeps its lane under a new lease
// that the handler does not know, so the handler's writes are refused and no other job of the lane starts. The daemon
// renews the new lease until the handler returns; if the process dies, the lease expires and the sweeper ends the attempt.
import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { insertEvents } from '../../events/log/record.ts';
import { endLeases, type HeldJob, insertLease, isHeld } from '../claim/lease.ts';
import type { StoredHold } from '../model/job.ts';

export interface Fence {
  /** Of the lease under which the job is held from now on. */
  leaseId: string;
  owner: string;
  leaseSeconds: number;
  hold: StoredHold;
}

/** False: the lease no longer owned the job. Can be repeated with the same fence if the answer was lost. */
export async function fenceOff(db: Queryable, schema: Schema, held: HeldJob, fence: Fence): Promise<boolean> {
  const { leaseId, owner, leaseSeconds, hold } = fence;
  const { outcome: _, ...shown } = hold;
  const rows = await db.query(
    `with given as (select $6::jsonb || jsonb_build_object('since', now()) as hold),
     fenced as (
       update ${schema}.jobs j
          set lease_id = $3::uuid,
              hold = g.hold,
              updated_at = now()
         from given g
        where j.id = $1
          and j.lease_id = $2::uuid
          and j.status = 'RUNNING'
       returning j.id, j.target_id, j.attempt, j.lease_id),
     leased as (${insertLease(schema, 'local', { lease: '$3::uuid', owner: '$4::text', seconds: '$5' }, 'fenced')}),
     ${endLeases(schema, 'array(select $2::uuid from fenced)', 'fenced')},
     recorded as (${insertEvents(schema, {
       source: 'fenced',
       type: `'job.handler_unresponsive'`,
       actor: `'worker:' || $4::text`,
       from: `'RUNNING'`,
       to: `'RUNNING'`,
       data: '$7::jsonb',
     })})
     select id from fenced`,
    [
      held.jobId,
      held.leaseId,
      leaseId,
      owner,
      leaseSeconds,
      JSON.stringify(hold),
      JSON.stringify({ ...shown, fenced_lease_id: held.leaseId }),
    ],
  );
  return rows.length > 0 || isHeld(db, schema, { jobId: held.jobId, leaseId });
}
