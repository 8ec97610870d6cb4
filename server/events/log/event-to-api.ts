// An event as users see it: in the API, in the live stream and in webhooks.
import type { Event } from './event.ts';

export interface EventResource {
  id: string;
  at: string;
  type: string;
  job_id: string | null;
  target_id: string | null;
  from: string | null;
  to: string | null;
  attempt: number | null;
  lease_id: string | null;
  actor: string;
  data: Record<string, unknown> | null;
}

export function eventToApi(event: Event): EventResource {
  return {
    // Its number in the tenant's own log. The transaction's id would tell what other tenants do.
    id: event.seq,
    at: event.at,
    type: event.type,
    job_id: event.jobId,
    target_id: event.targetId,
    from: event.fromStatus,
    to: event.toStatus,
    attempt: event.attempt,
    lease_id: event.leaseId,
    actor: event.actor,
    data: event.data,
  };
}
