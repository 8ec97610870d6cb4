-- $1: jobs
-- $2: actor
with
given as (
  select g.*, now() as at
  from jsonb_to_recordset($1::jsonb) as g("id" uuid, "maxAttempts" integer, "costUnits" integer, "priority" smallint,
    "remote" boolean, "type" text, "queue" text, "onError" text, "targetId" text, "tokenLimit" bigint, "payload" jsonb,
    "retry" jsonb, "timeoutSeconds" real, "constraints" jsonb, "onDrain" text, "webhookUrl" text,
    "clientRequestId" text, "requestHash" text, "traceparent" text, "author" text, "parentId" uuid, "scheduleId" uuid,
    "limitKeys" text[], "budget" jsonb, "status" text, "laneHead" boolean, "laneRank" smallint, "laneSeq" bigint,
    "runAt" timestamp with time zone, "expiresInSeconds" double precision)
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
      case when "status" = 'QUEUED' and "runAt" > at then 'PENDING' else "status" end, "laneHead", "laneRank",
      "laneSeq",
    coalesce("runAt", at),
    at,
    at,
    at + "expiresInSeconds" * interval '1 second',
    "limitKeys" is not null
  from given
  on conflict (client_request_id) where client_request_id is not null do nothing
  returning id, target_id, status, attempt, lease_id, created_at, run_at, expires_at
),
recorded as (
  with log as materialized (select case when (l.epoch + (l.relation <> l.tableoid::bigint or l.written_by::xid <> l.xmin)::int) = 0 then pg_current_xact_id() else (((l.epoch + (l.relation <> l.tableoid::bigint or l.written_by::xid <> l.xmin)::int)::bigint << 48) + pg_current_xact_id()::text::bigint)::text::xid8 end as xid
    from "tenant_acme".log_epochs l order by l.epoch desc limit 1)
  insert into "tenant_acme".events (xid, type, job_id, target_id, from_status, to_status, attempt, lease_id, actor,
    data)
  select log.xid, 'job.enqueued', id, target_id, null, status, attempt, lease_id, $2, null::jsonb
  from log cross join created
)
select * from created
