// The stream's log against the log in the database (I11): every event once, those of a job in their order, and those of
// a target as far as they depend on each other; none of another tenant (I9).
import { bySeq } from '../../../server/events/log/event.ts';
import type { StreamRecord } from '../load/stream.ts';
import type { Logged } from '../run-log.ts';
import type { EventRecord } from '../snapshot.ts';
import type { Violation } from './violation.ts';

export function* checkStream(stream: Logged<StreamRecord>[], events: Logged<EventRecord>[]): Generator<Violation> {
  const received = new Set<string>();
  const newest = new Map<string, Logged<StreamRecord>>();
  const jobs = new Set(events.map(({ job_id }) => job_id));
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
    const orders = [
      isBeside(record) ? undefined : job,
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

/** The outcome of a delivery is recorded without the lock of its job, at the same time as the next changes of the job. */
function isBeside({ event }: StreamRecord): boolean {
  return event.startsWith('job:webhook:');
}

/** Of one target, enqueues follow each other, and so do starts and ends. A job can be enqueued while another starts. */
function kindOf({ event, from, to }: StreamRecord): string | undefined {
  if (event === 'job:enqueued') return 'enqueues';
  return from === 'RUNNING' || to === 'RUNNING' ? 'runs' : undefined;
}
