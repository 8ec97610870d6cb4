// Fences off a handler that was asked to stop and still runs. The job stays RUNNING and keeps its lane under a new
// lease that the handler does not know, so the handler's writes are refused and no other job of the lane starts. The
// daemon renews the new lease until the handler returns. If the process dies, the lease expires and the sweeper ends
// the attempt.
import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { statement, tenant } from '../../database/sql.ts';
import { insertEvents, whileRunning } from '../../events/log/record.ts';
import { endLeases, fence, type HeldJob, insertLease, isHeld } from '../claim/lease.ts';
import type { StoredHold } from '../model/job.ts';

export interface Fence {
  /** The new lease that holds the job. */
  leaseId: string;
  owner: string;
  leaseSeconds: number;
  hold: StoredHold;
}

const newLease = { lease: ':newLeaseId::uuid', owner: ':owner::text', seconds: ':leaseSeconds' };

const fenceStatement = statement(`
  with given as (
    select :hold::jsonb || jsonb_build_object('since', now()) as hold
  ),
  fenced as (
    update ${tenant}.jobs j
       set lease_id = ${newLease.lease},
           hold = g.hold,
           updated_at = now()
      from given g
     where ${fence}
    returning j.id, j.target_id, j.attempt, j.lease_id
  ),
  leased as (${insertLease(tenant, 'local', newLease, 'fenced')}
  ),
  ${endLeases(tenant, 'array(select :leaseId::uuid from fenced)', 'fenced')},
  recorded as (
    ${insertEvents(tenant, {
      source: 'fenced',
      type: `'job.handler_unresponsive'`,
      actor: `'worker:' || ${newLease.owner}`,
      ...whileRunning,
      data: ':eventData::jsonb',
    })}
  )
  select id from fenced`);

/** Returns false if the lease no longer owned the job. Can be repeated with the same fence if the answer was lost. */
export async function fenceOff(db: Queryable, schema: Schema, held: HeldJob, given: Fence): Promise<boolean> {
  const { outcome: _, ...shown } = given.hold;
  const rows = await fenceStatement.query(db, schema, {
    ...held,
    newLeaseId: given.leaseId,
    owner: given.owner,
    leaseSeconds: given.leaseSeconds,
    hold: JSON.stringify(given.hold),
    eventData: JSON.stringify({ ...shown, fenced_lease_id: held.leaseId }),
  });
  return rows.length > 0 || isHeld(db, schema, { jobId: held.jobId, leaseId: given.leaseId });
}
