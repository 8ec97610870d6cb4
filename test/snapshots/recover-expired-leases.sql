-- $1: graceSeconds
-- $2: after
-- $3: limit
select id, kind, owner, job_ids
from "tenant_acme".leases
where state = 'ACTIVE'
  and expires_at < now() - $1::float8 * interval '1 second'
  and id > $2
order by id
limit $3
