// One attempt of a delivery: claims it, then writes its outcome. Every write is fenced by the number of the attempt: if
// the lock has expired and another daemon has claimed the delivery, this outcome is discarded.
import type { Queryable } from '../database/database.ts';
import type { Schema } from '../database/identifiers.ts';
import { statement, tenant } from '../database/sql.ts';
import { insertEvents } from '../events/log/record.ts';
import { type BackoffPolicy, backoffMs } from '../kernel/backoff.ts';
import { assertNever } from '../kernel/errors.ts';
import type { SendResult } from './sender.ts';

export interface ClaimedDelivery {
  id: string;
  job_id: string;
  event_type: string;
  event_xid: string;
  event_seq: string;
  url: string;
  /** The stored JSON, which is signed and sent without being parsed. */
  body: string;
  /** Number of this attempt, from 1: the fence of its outcome. */
  attempts: number;
  /** By the database's clock. */
  claimed_at: string;
}

/**
 * Claims deliveries that are due, for one attempt each. No other daemon claims them before the lock expires. A delivery
 * waits until all earlier ones of its job have ended.
 */
const claimDue = statement(`
  with due as (
    select d.id
      from ${tenant}.webhook_deliveries d
     where d.state = 'pending'
       and d.next_at <= now()
       and not exists (select 1
                         from ${tenant}.webhook_deliveries e
                        where e.job_id = d.job_id
                          and e.event_seq < d.event_seq
                          and e.state = 'pending')
     order by d.next_at
     limit :limit
       for update of d skip locked),
  claimed as (
    select id,
           now() as at,
           now() + :lockSeconds::float8 * interval '1 second' as until
      from due)
  update ${tenant}.webhook_deliveries d
     set attempts = d.attempts + 1,
         next_at = c.until,
         locked_until = c.until
    from claimed c
   where d.id = c.id
  returning d.id, d.job_id, d.event_type, d.event_xid, d.event_seq, d.url, d.body::text as body, d.attempts, c.at as claimed_at`);

export async function claimDeliveries(
  db: Queryable,
  schema: Schema,
  options: { limit: number; lockSeconds: number },
): Promise<ClaimedDelivery[]> {
  return claimDue.query<ClaimedDelivery>(db, schema, options);
}

export type DeliveryOutcome = 'delivered' | 'retried' | 'failed' | 'disabled';

/**
 * With the default of WEBHOOK_MAX_ATTEMPTS a receiver may be down for a day without missing an event. docs/webhooks.md
 * states the hours, and a test computes them from here.
 * @internal
 */
export const deliveryBackoff: BackoffPolicy = {
  kind: 'exponential',
  delaySeconds: 15,
  maxDelaySeconds: 21_600,
  jitter: 0.2,
};

/** Events that end a job unless a person acts on it. Their delivery sets `webhook_sent`. */
const terminalEvents = new Set(['job.completed', 'job.partial', 'job.failed', 'job.canceled', 'job.resolved']);

/** Returns undefined if another daemon has claimed the delivery since. */
export async function finishDelivery(
  db: Queryable,
  schema: Schema,
  delivery: ClaimedDelivery,
  result: SendResult,
  options: { maxAttempts: number; actor: string },
): Promise<DeliveryOutcome | undefined> {
  const finishAs = async (state: DeliveryEnd['state'], status: number | null, error: string | null) =>
    (await end(db, schema, delivery, { state, status, error }, options.actor)) ? state : undefined;
  switch (result.kind) {
    case 'accepted':
      return finishAs('delivered', result.status, null);
    case 'gone':
      return finishAs('disabled', 410, 'the receiver answered 410');
    case 'impossible':
      return finishAs('failed', null, result.error);
    case 'refused':
    case 'unreachable': {
      const status = result.kind === 'refused' ? result.status : null;
      if (delivery.attempts >= options.maxAttempts) return finishAs('failed', status, result.error);
      return (await scheduleRetry(db, schema, delivery, result.error, status)) ? 'retried' : undefined;
    }
    default:
      return assertNever(result);
  }
}

/** SQL: the attempt that this process claimed, unless another daemon has claimed the delivery since. */
const fence = `
         d.id = :id
     and d.attempts = :attempts
     and d.state = 'pending'`;

// The number of attempts that a person wants to see of a receiver that fails for hours.
const maxTries = 20;

/** SQL: the delivery with this attempt added, computed in a SELECT because a cluster refuses now() in an UPDATE. */
const nextTries = `
  select id,
         (case when jsonb_array_length(tries) >= ${maxTries} then tries - 0 else tries end)
           || jsonb_build_array(jsonb_build_object('at', now(), 'status', :status::int, 'error', :error::text)) as tries,
         now() + :retryInMs::float8 * interval '1 millisecond' as next_at
    from ${tenant}.webhook_deliveries
   where id = :id`;

/** A job that retention has deleted meanwhile gets no event. */
const insertDeliveryEvent = insertEvents(tenant, {
  source: `done join ${tenant}.jobs j on j.id = done.job_id`,
  type: ':event',
  jobId: 'j.id',
  attempt: 'j.attempt',
  lease: 'null',
  actor: ':actor',
  data: ':data::jsonb',
});

/** The end of a delivery, `webhook_sent` of its job and the event become visible together. */
const finish = statement(`
  with done as (
    update ${tenant}.webhook_deliveries d
       set state = :state,
           last_status = :status,
           last_error = :error,
           locked_until = null,
           finished_at = now(),
           tries = n.tries
      from (${nextTries}) n
     where n.id = d.id
       and ${fence}
    returning d.id, d.job_id),
  sent as (
    update ${tenant}.jobs
       set webhook_sent = true,
           updated_at = now()
     where id in (select job_id from done)
       and :sent::boolean
       and not webhook_sent
    returning id),
  recorded as (${insertDeliveryEvent})
  select id from done`);

const retry = statement(`
  update ${tenant}.webhook_deliveries d
     set last_status = :status,
         last_error = :error,
         locked_until = null,
         tries = n.tries,
         next_at = n.next_at
    from (${nextTries}) n
   where n.id = d.id
     and ${fence}
  returning d.id`);

/** Ends pending deliveries for the same URL. Bounded, because the others get their own 410. */
const disable = statement(`
  with waiting as (
    select id
      from ${tenant}.webhook_deliveries
     where state = 'pending'
       and url = :url
     order by next_at
     limit 1000
       for update skip locked)
  update ${tenant}.webhook_deliveries d
     set state = 'disabled',
         last_error = 'the receiver answered 410',
         locked_until = null,
         finished_at = now()
    from waiting w
   where d.id = w.id`);

interface DeliveryEnd {
  state: 'delivered' | 'failed' | 'disabled';
  status: number | null;
  error: string | null;
}

async function end(
  db: Queryable,
  schema: Schema,
  delivery: ClaimedDelivery,
  { state, status, error }: DeliveryEnd,
  actor: string,
): Promise<boolean> {
  const { id, event_type, event_seq, url, attempts } = delivery;
  const facts = { ...(error !== null && { error }), ...(status !== null && { status }) };
  const data = { delivery_id: id, event: event_type, event_id: event_seq, url, attempts, ...facts };
  const rows = await finish.query(db, schema, {
    id,
    attempts,
    state,
    status,
    error,
    retryInMs: null,
    sent: state === 'delivered' && terminalEvents.has(event_type),
    event: state === 'delivered' ? 'job.webhook_delivered' : 'job.webhook_failed',
    actor,
    data: JSON.stringify(data),
  });
  if (rows.length > 0 && state === 'disabled') await disable.query(db, schema, { url });
  return rows.length > 0;
}

async function scheduleRetry(
  db: Queryable,
  schema: Schema,
  { id, attempts }: ClaimedDelivery,
  error: string,
  status: number | null,
): Promise<boolean> {
  const retryInMs = backoffMs(deliveryBackoff, attempts, Math.random());
  const rows = await retry.query(db, schema, { id, attempts, status, error, retryInMs });
  return rows.length > 0;
}
