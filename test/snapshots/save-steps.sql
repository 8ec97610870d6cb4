-- $1: jobIds
-- $2: leaseIds
-- $3: ends
with held as (
  select j.id, j.target_id, j.attempt, j.lease_id, j.cancel_intent, j.cancel_detail
  from "tenant_acme".jobs j
  where j.id = any($1::uuid[])
    and j.lease_id = ($2::uuid[])[array_position($1::uuid[], j.id)]
    and j.status = 'RUNNING'
  for share
),
given as (
  select g.*, now() as at, now() - g.ms * interval '1 millisecond' as started
  from jsonb_to_recordset($3::jsonb) as g(
      n int, job_id uuid, name text, position smallint, parallel boolean, status text, result jsonb, error jsonb,
      tries int, ms float8, event text, actor text, data jsonb)
),
saved as (
  insert into "tenant_acme".phases as p
    (job_id, name, kind, position, parallel, status, progress, result, error, attempt, started_at, finished_at)
  select h.id, g.name, 'step', g.position, g.parallel, g.status, case when g.status = 'completed' then 100 else 0 end,
    g.result, g.error, g.tries, g.started, g.at
  from held h
  join given g on g.job_id = h.id
  on conflict (job_id, name) do update
  set status = excluded.status,
    progress = excluded.progress,
    result = excluded.result,
    error = excluded.error,
    attempt = p.attempt + excluded.attempt,
    finished_at = excluded.finished_at
  where p.status = 'pending'
    or row(p.status, p.result, p.error) is distinct from row(excluded.status, excluded.result, excluded.error)
  returning p.job_id, p.name
),
recorded as (
  with log as materialized (select case when (l.epoch + (l.relation <> l.tableoid::bigint or l.written_by::xid <> l.xmin)::int) = 0 then pg_current_xact_id() else (((l.epoch + (l.relation <> l.tableoid::bigint or l.written_by::xid <> l.xmin)::int)::bigint << 48) + pg_current_xact_id()::text::bigint)::text::xid8 end as xid
    from "tenant_acme".log_epochs l order by l.epoch desc limit 1)
  insert into "tenant_acme".events (xid, type, job_id, target_id, from_status, to_status, attempt, lease_id, actor,
    data)
  select log.xid, g.event, h.id, h.target_id, 'RUNNING', 'RUNNING', h.attempt, h.lease_id, g.actor, g.data
  from held h
  join given g on g.job_id = h.id
  join saved s on s.job_id = g.job_id and s.name = g.name
  cross join log
  where g.event is not null
  order by g.n
)
select h.id, h.cancel_intent as "cancelIntent", h.cancel_detail as "cancelDetail" from held h
