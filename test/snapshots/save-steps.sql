-- $1: jobIds
-- $2: leaseIds
-- $3: changes
with held as (
  select j.id, j.target_id, j.attempt, j.lease_id, j.cancel_intent, j.cancel_detail
  from "tenant_acme".jobs j
  where j.id = any($1::uuid[])
    and j.lease_id = ($2::uuid[])[array_position($1::uuid[], j.id)]
    and j.status = 'RUNNING'
  for share
),
given as (
  select g.*,
    case when g.status <> 'pending' then now() - g.ms * interval '1 millisecond' end as started,
    case when g.status not in ('pending', 'running') then now() end as ended
  from jsonb_to_recordset($3::jsonb) as g(
      n int, job_id uuid, name text, kind text, position smallint, parallel boolean, status text, message text,
      result jsonb, error jsonb, attempt int, ms float8, overall real, event text, actor text, data jsonb)
),
saved as (
  insert into "tenant_acme".phases as p
    (job_id, name, kind, position, parallel, status, progress, message, result, error, attempt, started_at,
      finished_at)
  select h.id, g.name, g.kind, g.position, g.parallel, g.status,
    case when g.status in ('completed', 'partial') then 100 else 0 end,
    g.message, g.result, g.error, g.attempt, g.started, g.ended
  from held h
  join given g on g.job_id = h.id
  where h.cancel_intent is null
    or g.status <> 'running'
  on conflict (job_id, name) do update
  set position = excluded.position,
    status = excluded.status,
    progress = case when excluded.status in ('failed', 'skipped') then p.progress else excluded.progress end,
    message = case when excluded.status = 'running' then null else coalesce(excluded.message, p.message) end,
    result = excluded.result,
    error = excluded.error,
    attempt = case when excluded.status = 'running' then 0 else p.attempt end + excluded.attempt,
    started_at = case when excluded.status = 'running' then excluded.started_at else p.started_at end,
    finished_at = excluded.finished_at
  where (p.status not in ('completed', 'partial', 'skipped') or p.kind not in ('phase', 'step'))
    and case
    when excluded.status = 'running' then p.attempt < excluded.attempt
    when excluded.status = 'pending' and p.kind = 'phase' then p.position <> excluded.position
    else p.status = 'pending'
    or row(p.status, p.result, p.error) is distinct from row(excluded.status, excluded.result, excluded.error)
    end
  returning p.job_id, p.name
),
recorded as (
  with log as materialized (select case when (l.epoch + (l.relation <> l.tableoid::bigint or l.written_by::xid <> l.xmin)::int) = 0 then pg_current_xact_id() else (((l.epoch + (l.relation <> l.tableoid::bigint or l.written_by::xid <> l.xmin)::int)::bigint << 48) + pg_current_xact_id()::text::bigint)::text::xid8 end as xid
    from "tenant_acme".log_epochs l order by l.epoch desc limit 1)
  insert into "tenant_acme".events (xid, type, job_id, target_id, from_status, to_status, attempt, lease_id, actor,
    data)
  select log.xid, g.event, h.id, target_id, 'RUNNING', 'RUNNING', h.attempt, lease_id, g.actor, g.data
  from log cross join held h
  join given g on g.job_id = h.id
  join saved s on s.job_id = g.job_id and s.name = g.name
  where g.event is not null
  order by g.n
)
select h.id, h.cancel_intent as "cancelIntent", h.cancel_detail as "cancelDetail" from held h
