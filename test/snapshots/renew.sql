-- $1: leaseSeconds
-- $2: leaseIds
with renewed as (
  update "tenant_acme".leases
  set expires_at = now() + $1::float8 * interval '1 second',
    last_heartbeat_at = now()
  where id = any($2::uuid[])
    and state = 'ACTIVE'
  returning id, job_ids
)
select j.id, j.lease_id, j.cancel_intent, j.cancel_detail
from "tenant_acme".jobs j
where j.id = any(array(select unnest(job_ids) from renewed))
  and j.status = 'RUNNING'
  and j.lease_id in (select id from renewed)
