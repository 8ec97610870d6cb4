// An event of the append-only log: as a row, in code, and as the API, the live stream and webhooks show it.
import { getTableColumns } from 'drizzle-orm';
import type { RowOf } from '../../database/reads/drizzle.ts';
import { events } from '../../database/tables/tenant-log.ts';

/** `xid` (the transaction that wrote it) and `seq` are texts, because they can exceed 2^53. */
export interface Event extends Omit<RowOf<typeof events>, 'data'> {
  data: Record<string, unknown> | null;
}

/** A row as a statement returns it, with the names of the columns. */
export type EventRow = Pick<Event, 'xid' | 'seq'> & Record<string, unknown>;

const columns = Object.entries(getTableColumns(events)).map(([key, { name }]) => [key, name] as const);

export const eventColumns = columns.map(([, name]) => name).join(', ');

export function toEvent(row: EventRow): Event {
  const event: Record<string, unknown> = {};
  for (const [key, name] of columns) event[key] = row[name];
  return event as unknown as Event;
}

/** `xid:seq`: identifies the event outside the database. */
export function eventKey(event: Pick<Event, 'xid' | 'seq'>): string {
  return `${event.xid}:${event.seq}`;
}

export function fromKey(key: string): Pick<Event, 'xid' | 'seq'> {
  const [xid = '0', seq = '0'] = key.split(':');
  return { xid, seq };
}

/** Orders the events of one job or target, whose numbers are taken under its lock. */
export function bySeq(a: Pick<Event, 'seq'>, b: Pick<Event, 'seq'>): number {
  if (a.seq.length !== b.seq.length) return a.seq.length - b.seq.length;
  return a.seq < b.seq ? -1 : a.seq > b.seq ? 1 : 0;
}

export function eventToApi(event: Event) {
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
