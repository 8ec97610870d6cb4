// Jobs that are owned by a lease which is gone or has ended: no statement of this version leaves one behind, but an
// older daemon, a restored backup or a hand in the database may. Their lease is opened again, so that a holder that is
// still at work renews it; if there is none it runs out, and the jobs are recovered like those of any other lease.
import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { ownedStatuses } from '../model/states.ts';

const owned = ownedStatuses.map((status) => `'${status}'`).join(', ');

/** SQL, over `j`: the job is owned by nobody who could be found to have gone silent. */
export function hasNoLease(schema: Schema): string {
  return `j.status in (${owned}) and not exists (
    select 1 from ${schema}.leases l where l.id = j.lease_id and l.state = 'ACTIVE' and j.id = any(l.job_ids))`;
}

/** Returns the ids of the leases that were opened. */
export async function reopenLeases(
  db: Queryable,
  schema: Schema,
  jobIds: readonly string[],
  leaseSeconds: number,
): Promise<string[]> {
  const rows = await db.query<{ id: string }>(
    `with lost as (
       select j.lease_id as id, min(case when j.status <> 'RUNNING' then 'claim' when j.remote then 'remote' else 'local' end) as kind,
              min(j.lease_owner) as owner, array_agg(j.id) as job_ids, min(j.queue) filter (where j.remote) as queue,
              coalesce(sum(j.cost_units) filter (where j.remote), 0)::int as cost_units, now() as at
         from ${schema}.jobs j where j.id = any($1::uuid[]) and ${hasNoLease(schema)} group by j.lease_id)
     insert into ${schema}.leases as l (id, kind, owner, job_ids, queue, cost_units, ttl_seconds, granted_at, last_heartbeat_at, expires_at)
     select id, kind, owner, job_ids, queue, cost_units, $2::real, at, at, at + $2::float8 * interval '1 second' from lost
     -- A lease that has ended is trusted by nobody: it has run out already.
     on conflict (id) do update set state = excluded.state, kind = excluded.kind, released_at = null, release_status = null,
       job_ids = excluded.job_ids, expires_at = excluded.granted_at
     returning l.id`,
    [jobIds, leaseSeconds],
  );
  return rows.map((row) => row.id);
}
