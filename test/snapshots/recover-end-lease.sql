-- $1: leaseId
-- $2: overdueSeconds
-- $3: state
-- $4: releaseStatus
with e as (
  select id
  from "tenant_acme".leases
  where id = $1
    and state = 'ACTIVE'
    and ($2::float8 is null or expires_at < now() - $2::float8 * interval '1 second')
  for update skip locked
)
update "tenant_acme".leases l
set state = $3,
  released_at = now(),
  release_status = $4
from e
where l.id = e.id
returning l.id
