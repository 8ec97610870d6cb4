-- $1: entries
-- $2: jobIds
-- $3: leaseId
-- $4: endedLeases
-- $5: actor
-- $6: count
with
finished as (
  update "tenant_acme".jobs j
  set status = 'PAUSED',
    held_since = now(),
    error = ($1::jsonb -> j.id::text) -> 'error',
    hold = ($1::jsonb -> j.id::text) -> 'hold',
    lease_owner = null,
    cancel_requested = false,
    cancel_intent = null,
    cancel_detail = null,
    updated_at = now()
  where j.id = any(array(select unnest($2::uuid[])))
    and j.lease_id = $3::uuid
    and j.cancel_intent is distinct from 'cancel'
    and j.status in ('RUNNING')
  returning j.id, j.target_id, j.attempt, j.lease_id, j.lane_head, j.lane_seq, j.priority
),
phases as (
  update "tenant_acme".phases p
  set status = 'pending'
  from finished f
  where p.job_id = f.id
    and p.status in ('running')
),
ended as (
  update "tenant_acme".leases
  set state = 'RELEASED',
    released_at = now()
  where state = 'ACTIVE'
    and id = any(array(
      select l.id
      from "tenant_acme".leases l
      where l.id = any($4::uuid[])
        and l.kind = 'local'
        and l.state = 'ACTIVE'
        and array(
        select j.id
        from "tenant_acme".jobs j
        where j.id = any(array(select u.id from unnest(l.job_ids) as u(id) where u.id not in (select id from finished)))
          and j.lease_id = l.id
          and j.status = 'RUNNING'
        limit 1
      ) = '{}'
  ))
),
recorded as (
  with log as materialized (select case when (l.epoch + (l.relation <> l.tableoid::bigint or l.written_by::xid <> l.xmin)::int) = 0 then pg_current_xact_id() else (((l.epoch + (l.relation <> l.tableoid::bigint or l.written_by::xid <> l.xmin)::int)::bigint << 48) + pg_current_xact_id()::text::bigint)::text::xid8 end as xid
    from "tenant_acme".log_epochs l order by l.epoch desc limit 1)
  insert into "tenant_acme".events (xid, type, job_id, target_id, from_status, to_status, attempt, lease_id, actor,
    data)
  select log.xid, 'job.paused', id, target_id, 'RUNNING', 'PAUSED', attempt, lease_id, $5,
    $1::jsonb -> id::text -> 'eventData'
  from log cross join finished
)
select
  jsonb_build_object(
    'accepted', accepted,
    'promoted', false,
    'ids', case when accepted < $6::int then (select jsonb_agg(id) from finished) end
) as summary
from (select count(*)::int as accepted from finished) as c
