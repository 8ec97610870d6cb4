// An event of the append-only log: as a row, in code, and as the API, the live stream and webhooks show it.

export interface Event {
  /** The transaction that wrote it. Never a JS number: it can pass 2^53. */
  xid: string;
  seq: string;
  at: string;
  type: string;
  jobId: string | null;
  targetId: string | null;
  fromStatus: string | null;
  toStatus: string | null;
  attempt: number | null;
  leaseId: string | null;
  actor: string;
  data: Record<string, unknown> | null;
}

export interface EventRow {
  xid: string;
  seq: string;
  at: string;
  type: string;
  job_id: string | null;
  target_id: string | null;
  from_status: string | null;
  to_status: string | null;
  attempt: number | null;
  lease_id: string | null;
  actor: string;
  data: Record<string, unknown> | null;
}

export const eventColumns =
  'xid, seq, at, type, job_id, target_id, from_status, to_status, attempt, lease_id, actor, data';

export function toEvent(row: EventRow): Event {
  return {
    xid: row.xid,
    seq: row.seq,
    at: row.at,
    type: row.type,
    jobId: row.job_id,
    targetId: row.target_id,
    fromStatus: row.from_status,
    toStatus: row.to_status,
    attempt: row.attempt,
    leaseId: row.lease_id,
    actor: row.actor,
    data: row.data,
  };
}

/** `xid:seq`: identifies the event outside the database. */
export function eventKey(event: Pick<Event, 'xid' | 'seq'>): string {
  return `${event.xid}:${event.seq}`;
}

/** The order of events of one job or target: their numbers are taken under its lock. */
export function bySeq(a: Pick<Event, 'seq'>, b: Pick<Event, 'seq'>): number {
  if (a.seq.length !== b.seq.length) return a.seq.length - b.seq.length;
  return a.seq < b.seq ? -1 : a.seq > b.seq ? 1 : 0;
}

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
    // The number in the tenant's own log. The transaction id would reveal the activity of other tenants.
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
