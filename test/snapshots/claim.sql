-- $1: types
-- $2: advisoryKey
-- $3: limit
-- $4: leaseId
-- $5: owner
-- $6: leaseSeconds
with found as materialized (
  select id, priority, created_at,
    coalesce(case when pg_column_compression(payload) is null then pg_column_size(payload)
      else octet_length(payload::text) end, 0) as bytes
  from "tenant_acme".jobs j
  where j.status = 'QUEUED' and j.lane_head and not j.remote and not j.gated
    and case
    when ($1::text[] is null or type = any($1::text[]))
    then target_id is null
    or pg_try_advisory_xact_lock(hashtextextended(target_id, $2::bigint))
    else false
    end
  order by priority, created_at, id
  limit $3
  for update skip locked
),
picked as (
  select id
  from (
    select id, bytes, sum(bytes) over (rows unbounded preceding) as total
    from found
  ) as sized
  where total - bytes < 262144
),
leased as (
  insert into "tenant_acme".leases (id, kind, owner, job_ids, ttl_seconds, expires_at)
  select $4::uuid, 'local', $5::text, ids, $6::real, at + $6::float8 * interval '1 second'
  from (select array_agg(id) as ids, now() as at from picked) as s
  where ids is not null
),
claimed as (
  update "tenant_acme".jobs j
  set status = 'RUNNING',
    lease_id = $4::uuid,
    lease_owner = $5::text,
    attempt = j.attempt + 1,
    started_at = now(),
    progress = null,
    progress_message = null,
    cancel_requested = false,
    cancel_intent = null,
    cancel_detail = null,
    updated_at = now()
  where j.id = any(array(select id from picked))
    and j.status in ('QUEUED')
  returning j.id, j.type, j.target_id, j.priority, j.created_at, j.run_at, j.started_at, j.attempt, j.payload,
    j.max_attempts, j.cost_units, j.queue, j.on_error, j.token_limit, j.retry, j.timeout_seconds, j.constraints,
    j.on_drain, j.traceparent, j.author, j.parent_id, j.budget, j.attempt_floor, j.tokens_used, j.usage, j.checkpoint
),
recorded as (
  with log as materialized (select case when (l.epoch + (l.relation <> l.tableoid::bigint or l.written_by::xid <> l.xmin)::int) = 0 then pg_current_xact_id() else (((l.epoch + (l.relation <> l.tableoid::bigint or l.written_by::xid <> l.xmin)::int)::bigint << 48) + pg_current_xact_id()::text::bigint)::text::xid8 end as xid
    from "tenant_acme".log_epochs l order by l.epoch desc limit 1)
  insert into "tenant_acme".events (xid, type, job_id, target_id, from_status, to_status, attempt, lease_id, actor,
    data)
  select log.xid, 'job.started', id, target_id, 'QUEUED', 'RUNNING', attempt, $4::uuid, 'worker:' || $5::text,
    null::jsonb
  from log cross join claimed
)
select
  id,
  type,
  target_id,
  priority,
  created_at,
  nullif(run_at, created_at) as run_at,
  attempt,
  payload,
  case
  when max_attempts = 1
  and cost_units = 1
  and queue = 'default'
  and on_error = 'block'
  and token_limit is null
  and retry is null
  and timeout_seconds is null
  and constraints is null
  and on_drain is null
  and traceparent is null
  and author is null
  and parent_id is null
  and budget is null
  and attempt_floor = 0
  and tokens_used = 0
  and usage is null
  and checkpoint is null
  then null
  else jsonb_build_object('maxAttempts', max_attempts, 'costUnits', cost_units, 'queue', queue, 'onError', on_error,
    'tokenLimit', token_limit, 'retry', retry, 'timeoutSeconds', timeout_seconds, 'constraints', constraints, 'onDrain',
    on_drain, 'traceparent', traceparent, 'author', author, 'parentId', parent_id, 'budget', budget, 'attemptFloor',
    attempt_floor, 'tokensUsed', tokens_used, 'usage', usage, 'checkpoint', checkpoint)
  end as non_defaults,
  case when id = (select id from claimed limit 1) then started_at end as started_at,
  s.found > (select count(*) from picked) as cut,
  s.found < $3 and s.found < (
  select count(*)
  from (
    select 1
    from "tenant_acme".jobs j
    where j.status = 'QUEUED' and j.lane_head and not j.remote and not j.gated
      and ($1::text[] is null or type = any($1::text[]))
    order by priority, created_at, id
    limit $3
  ) as claimable) as skipped
from (select count(*) as found from found) as s
  left join claimed on true
