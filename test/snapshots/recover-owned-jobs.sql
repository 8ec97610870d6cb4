-- $1: jobIds
-- $2: leaseId
select j.id, j.created_at as "createdAt", j.run_at as "runAt", j.updated_at as "updatedAt", j.lane_seq as "laneSeq",
  j.tokens_used as "tokensUsed", j.attempt, j.attempt_floor as "attemptFloor", j.max_attempts as "maxAttempts",
  j.cost_units as "costUnits", j.priority, j.lane_head as "laneHead", j.remote, j.gated,
  j.cancel_requested as "cancelRequested", j.webhook_sent as "webhookSent", j.status, j.type, j.queue,
  j.on_error as "onError", j.target_id as "targetId", j.lane_rank as "laneRank", j.lease_id as "leaseId",
  j.lease_owner as "leaseOwner", j.started_at as "startedAt", j.finished_at as "finishedAt",
  j.held_since as "heldSince", j.expires_at as "expiresAt", j.stale_at as "staleAt", j.cancel_intent as "cancelIntent",
  j.cancel_detail as "cancelDetail", j.token_limit as "tokenLimit", j.progress, j.progress_message as "progressMessage",
  j.payload, j.result, j.error, j.hold, j.checkpoint, j.waiting, j.retry, j.timeout_seconds as "timeoutSeconds",
  j.constraints, j.on_drain as "onDrain", j.webhook_url as "webhookUrl", j.client_request_id as "clientRequestId",
  j.request_hash as "requestHash", j.traceparent, j.author, j.parent_id as "parentId", j.schedule_id as "scheduleId",
  j.limit_keys as "limitKeys", j.budget, j.usage, j.asked
from "tenant_acme".jobs j
where j.id = any($1::uuid[])
  and j.lease_id = $2
  and j.status in ('CLAIMED', 'PREPARING', 'LEASE_PENDING', 'RUNNING')
