// The stream's log against the log in the database (I11): every event once, those of a job in their order, and those of
// a target as far as they depend on each other; none of another tenant (I9). Only the outcome of a webhook delivery may
// come before an earlier event of its job: after the event that it delivered, and after earlier outcomes of the delivery.
import { bySeq } from '../../../server/events/log/event.ts';
import type { StreamRecord } from '../load/stream.ts';
import type { Logged } from '../run-log.ts';
import type { EventRecord } from '../snapshot.ts';
import type { Violation } from './violation.ts';

export function* checkStream(stream: Logged<StreamRecord>[], events: Logged<EventRecord>[]): Generator<Violation> {
  const received = new Set<string>();
  const newest = new Map<string, Logged<StreamRecord>>();
  const jobs = new Set(events.map(({ job_id }) => job_id));
  const deliveries = deliveriesOf(events);
  for (const record of stream) {
    const { seq, job, target, place } = record;
    if (record.event === 'reset') yield { invariant: 'I11', text: 'the stream was reset', place };
    if (seq === undefined) continue;
    if (received.has(seq)) yield { invariant: 'I11', text: `event ${seq} was sent twice`, place };
    received.add(seq);
    if (job != null && !jobs.has(job)) {
      yield { invariant: 'I9', text: `event ${seq} is of job ${job}, which this tenant does not have`, place };
    }
    const kind = kindOf(record);
    const delivery = deliveries.get(seq);
    if (delivery !== undefined && !received.has(delivery.event)) {
      const text = `event ${seq} came before ${delivery.event}, whose delivery it reports`;
      yield { invariant: 'I11', text, place };
    }
    const orders = [
      delivery === undefined ? job : delivery.name,
      target == null || kind === undefined ? undefined : `${kind} of ${target}`,
    ];
    for (const order of orders) {
      if (order == null) continue;
      const before = newest.get(order);
      if (before !== undefined && bySeq(before as { seq: string }, { seq }) > 0) {
        yield { invariant: 'I11', text: `event ${seq} of ${order} came after ${before.seq} (${before.place})`, place };
      }
      newest.set(order, record);
    }
  }
  for (const { seq, type, job_id, place } of events) {
    if (received.has(seq)) continue;
    yield { invariant: 'I11', text: `event ${seq} (${type} of ${job_id}) never came in the stream`, place };
  }
}

/**
 * The outcomes of deliveries, by their number, with the event that was delivered. They are recorded without the lock of
 * their job, at the same time as its next changes.
 */
function deliveriesOf(events: Logged<EventRecord>[]): Map<string, { name: string; event: string }> {
  const deliveries = new Map<string, { name: string; event: string }>();
  for (const { seq, type, data } of events) {
    if (type !== 'job.webhook_delivered' && type !== 'job.webhook_failed') continue;
    const { delivery_id, event_id } = data as { delivery_id?: string; event_id: string };
    deliveries.set(seq, { name: `delivery ${delivery_id ?? seq}`, event: String(event_id) });
  }
  return deliveries;
}

/** Of one target, enqueues follow each other, and so do starts and ends. A job can be enqueued while another starts. */
function kindOf({ event, from, to }: StreamRecord): string | undefined {
  if (event === 'job:enqueued') return 'enqueues';
  return from === 'RUNNING' || to === 'RUNNING' ? 'runs' : undefined;
}
