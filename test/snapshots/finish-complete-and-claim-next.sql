-- $1: entries
-- $2: jobIds
-- $3: endedLeases
-- $4: nextTypes
-- $5: nextLimit
-- $6: nextLeaseId
-- $7: nextOwner
-- $8: nextLeaseSeconds
-- $9: actor
-- $10: count
with
finished as (
  update "tenant_acme".jobs j
  set status = 'SUCCESS',
    lane_head = (j.target_id is null),
    finished_at = now(),
    progress = 100,
    result = ($1::jsonb -> j.id::text) -> 'result',
    error = null,
    lease_owner = null,
    cancel_requested = false,
    cancel_intent = null,
    cancel_detail = null,
    updated_at = now()
  where j.id = any(array(select unnest($2::uuid[])))
    and j.lease_id = (($1::jsonb -> j.id::text) ->> 'lease')::uuid
    and j.asked is null
    and j.status in ('RUNNING')
  returning j.id, j.target_id, j.attempt, j.lease_id, j.lane_head, j.lane_seq, j.priority
),
ended as (
  update "tenant_acme".leases
  set state = 'RELEASED',
    released_at = now()
  where state = 'ACTIVE'
    and id = any(array(
      select l.id
      from "tenant_acme".leases l
      where l.id = any($3::uuid[])
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
next as (
  select n.*
  from finished f
  cross join lateral (
    (
      select j.id, j.status, j.type, j.remote, j.gated, j.priority, j.created_at,
        coalesce(case when pg_column_compression(j.payload) is null then pg_column_size(j.payload)
          else octet_length(j.payload::text) end, 0) as bytes
      from "tenant_acme".jobs j
      where j.target_id = f.target_id
        and j.lane_rank is not null
        and (j.lane_rank, j.lane_seq) <= (f.priority + 2, f.lane_seq + 4)
      order by j.lane_rank, j.lane_seq
      limit 1
    )
    union all
    (
      select j.id, j.status, j.type, j.remote, j.gated, j.priority, j.created_at,
        coalesce(case when pg_column_compression(j.payload) is null then pg_column_size(j.payload)
          else octet_length(j.payload::text) end, 0) as bytes
      from "tenant_acme".jobs j
      where j.target_id = f.target_id
        and j.lane_rank is not null
      order by j.lane_rank, j.lane_seq
      limit 1
    )
    limit 1
  ) n
  where not f.lane_head
    and not exists (select 1 from "tenant_acme".targets t where t.id = f.target_id and t.paused_at is not null)
),
startable as (
  select id, priority, created_at, bytes
  from next n
  where n.status in ('QUEUED')
    and not n.remote
    and not n.gated
    and ($4::text[] is null or n.type = any($4::text[]))
  order by n.priority, n.created_at, n.id
  limit $5
),
picked as (
  select id
  from (
    select id, bytes, sum(bytes) over (rows unbounded preceding) as total
    from startable
  ) as sized
  where total - bytes < 262144
),
leased as (
  insert into "tenant_acme".leases (id, kind, owner, job_ids, ttl_seconds, expires_at)
  select $6::uuid, 'local', $7::text, ids, $8::real, at + $8::float8 * interval '1 second'
  from (select array_agg(id) as ids, now() as at from picked) as s
  where ids is not null
),
claimed as (
  update "tenant_acme".jobs j
  set status = 'RUNNING',
    lane_head = true, lane_rank = null,
    lease_id = $6::uuid,
    lease_owner = $7::text,
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
promoted as (
  update "tenant_acme".jobs
  set lane_head = true, lane_rank = null
  where id = any(array(select id from next except select id from picked))
  returning id
),
recorded as (
  with log as materialized (select case when (l.epoch + (l.relation <> l.tableoid::bigint or l.written_by::xid <> l.xmin)::int) = 0 then pg_current_xact_id() else (((l.epoch + (l.relation <> l.tableoid::bigint or l.written_by::xid <> l.xmin)::int)::bigint << 48) + pg_current_xact_id()::text::bigint)::text::xid8 end as xid
    from "tenant_acme".log_epochs l order by l.epoch desc limit 1)
  insert into "tenant_acme".events (xid, type, job_id, target_id, from_status, to_status, attempt, lease_id, actor,
    data)
  select log.xid, 'job.completed', id, target_id, 'RUNNING', 'SUCCESS', attempt, lease_id, $9, null::jsonb
  from log cross join finished
  union all
  select log.xid, 'job.started', id, target_id, 'QUEUED', 'RUNNING', attempt, $6::uuid, 'worker:' || $7::text,
    null::jsonb
  from log cross join claimed
)
select id,
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
  null::jsonb as summary
from claimed
union all
select null, null, null, null, null, null, null, null, null, null,
  jsonb_build_object(
    'accepted', accepted,
    'promoted', exists (select 1 from promoted),
    'canary', exists (
    select 1
    from "tenant_acme".targets t
    where t.canary_job_id = any(array(select id from finished))
  ),
    'ids', case when accepted < $10::int then (select jsonb_agg(id) from finished) end
) as summary
from (select count(*)::int as accepted from finished) as c
