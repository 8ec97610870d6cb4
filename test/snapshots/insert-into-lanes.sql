-- $1: targetIds
-- $2: jobs
-- $3: actor
with lanes as materialized (
  select t.id,
    t.lane_seq,
    s.headless and n.id is null as free,
    n.id as next_id,
    exists (select 1 from "tenant_acme".jobs d where d.target_id = t.id and d.status = 'PENDING' and not d.lane_head and d.run_at <= now()) as has_due
  from "tenant_acme".targets t
  cross join lateral (
    select t.paused_at is null
      and not exists (select 1 from "tenant_acme".jobs h where h.target_id = t.id and h.lane_head) as headless
  ) s
    left join lateral (
    select j.id
    from "tenant_acme".jobs j
    where s.headless
      and j.target_id = t.id
      and j.lane_rank is not null
    order by j.lane_rank, j.lane_seq
    limit 1
  ) n on true
  where t.id = any($1::text[])
),
promoted as (
  update "tenant_acme".jobs
  set lane_head = true, lane_rank = null
  where id = any(array(select next_id from lanes where next_id is not null))
),
given as (
  select g.*, now() as at  , l.lane_seq, "targetId" is null or ("laneHead" and l.free and coalesce("runAt" <= now(),
    true)) as head
  from jsonb_to_recordset($2::jsonb) as g("id" uuid, "maxAttempts" integer, "costUnits" integer, "priority" smallint,
    "remote" boolean, "type" text, "queue" text, "onError" text, "targetId" text, "tokenLimit" bigint, "payload" jsonb,
    "retry" jsonb, "timeoutSeconds" real, "constraints" jsonb, "onDrain" text, "webhookUrl" text,
    "clientRequestId" text, "requestHash" text, "traceparent" text, "author" text, "parentId" uuid, "scheduleId" uuid,
    "limitKeys" text[], "budget" jsonb, "status" text, "laneHead" boolean, "laneRank" smallint, "laneSeq" bigint,
    "runAt" timestamp with time zone, "expiresInSeconds" double precision)
    left join lanes l on l.id = g."targetId" where not exists (select 1 from lanes where has_due)
),
created as (
  insert into "tenant_acme".jobs (
      id, max_attempts, cost_units, priority, remote, type, queue, on_error, target_id, token_limit, payload, retry,
        timeout_seconds, constraints, on_drain, webhook_url, client_request_id, request_hash, traceparent, author,
        parent_id, schedule_id, limit_keys, budget, status, lane_head, lane_rank, lane_seq,
      run_at,
      created_at,
      updated_at,
      expires_at,
      gated
  )
  select
    "id", "maxAttempts", "costUnits", "priority", "remote", "type", "queue", "onError", "targetId", "tokenLimit",
      "payload", "retry", "timeoutSeconds", "constraints", "onDrain", "webhookUrl", "clientRequestId", "requestHash",
      "traceparent", "author", "parentId", "scheduleId", "limitKeys", "budget",
      case when "status" = 'QUEUED' and "runAt" > at then 'PENDING' else "status" end, head,
      case when not head and ("runAt" > at) is not true then 2 + "priority" end, coalesce(lane_seq + "laneSeq", 0),
    coalesce("runAt", at),
    at,
    at,
    at + "expiresInSeconds" * interval '1 second',
    "limitKeys" is not null
  from given
  on conflict (client_request_id) where client_request_id is not null do nothing
  returning id, target_id, status, attempt, lease_id, created_at, run_at, expires_at , lane_head, lane_rank, lane_seq
),
recorded as (
  with log as materialized (select case when (l.epoch + (l.relation <> l.tableoid::bigint or l.written_by::xid <> l.xmin)::int) = 0 then pg_current_xact_id() else (((l.epoch + (l.relation <> l.tableoid::bigint or l.written_by::xid <> l.xmin)::int)::bigint << 48) + pg_current_xact_id()::text::bigint)::text::xid8 end as xid
    from "tenant_acme".log_epochs l order by l.epoch desc limit 1)
  insert into "tenant_acme".events (xid, type, job_id, target_id, from_status, to_status, attempt, lease_id, actor,
    data)
  select log.xid, 'job.enqueued', id, target_id, null, status, attempt, lease_id, $3, null::jsonb
  from log cross join created
)
select created.*, s.* from (select exists (select 1 from lanes where has_due) as has_due,
    exists (select 1 from lanes where next_id is not null) as promoted) as s left join created on true
