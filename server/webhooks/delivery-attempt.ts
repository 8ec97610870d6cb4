// One attempt of a delivery: claim it, then write how it ended. Every write is fenced by the number of the attempt: if the
// lock has expired and another daemon has claimed the delivery, this outcome is discarded.
import type { Queryable } from '../database/database.ts';
import type { Schema } from '../database/identifiers.ts';
import { currentTransaction } from '../events/log/transaction-ids.ts';
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
  /** JSON exactly as stored: it is signed and sent without being read. */
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
export async function claimDeliveries(
  db: Queryable,
  schema: Schema,
  options: { limit: number; lockSeconds: number },
): Promise<ClaimedDelivery[]> {
  return db.query<ClaimedDelivery>(
    `with due as (
       select d.id
         from ${schema}.webhook_deliveries d
        where d.state = 'pending'
          and d.next_at <= now()
          and not exists (select 1
                            from ${schema}.webhook_deliveries e
                           where e.job_id = d.job_id
                             and e.event_seq < d.event_seq
                             and e.state = 'pending')
        order by d.next_at
        limit $1
          for update of d skip locked),
     claimed as (
       select id,
              now() as at,
              now() + $2::float8 * interval '1 second' as until
         from due)
     update ${schema}.webhook_deliveries d
        set attempts = d.attempts + 1,
            next_at = c.until,
            locked_until = c.until
       from claimed c
      where d.id = c.id
     returning d.id, d.job_id, d.event_type, d.event_xid, d.event_seq, d.url, d.body::text as body, d.attempts, c.at as claimed_at`,
    [options.limit, options.lockSeconds],
  );
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

/** The last events of a job, unless a person acts on it: their delivery sets `webhook_sent`. */
const terminalEvents = new Set(['job.completed', 'job.partial', 'job.failed', 'job.canceled', 'job.resolved']);

/** Undefined: another daemon has claimed the delivery since. */
export async function finishDelivery(
  db: Queryable,
  schema: Schema,
  delivery: ClaimedDelivery,
  result: SendResult,
  options: { maxAttempts: number; actor: string },
): Promise<DeliveryOutcome | undefined> {
  switch (result.kind) {
    case 'accepted':
      return (await markDelivered(db, schema, delivery, result.status, options.actor)) ? 'delivered' : undefined;
    case 'gone':
      return (await finishUndelivered(
        db,
        schema,
        delivery,
        'disabled',
        'the receiver answered 410',
        410,
        options.actor,
      ))
        ? 'disabled'
        : undefined;
    case 'impossible':
      return (await finishUndelivered(db, schema, delivery, 'failed', result.error, null, options.actor))
        ? 'failed'
        : undefined;
    case 'refused':
    case 'unreachable': {
      const status = result.kind === 'refused' ? result.status : null;
      if (delivery.attempts < options.maxAttempts) {
        return (await scheduleRetry(db, schema, delivery, result.error, status)) ? 'retried' : undefined;
      }
      return (await finishUndelivered(db, schema, delivery, 'failed', result.error, status, options.actor))
        ? 'failed'
        : undefined;
    }
    default:
      return assertNever(result);
  }
}

/** The delivery, `webhook_sent` and the event `job.webhook_delivered` become visible together. */
async function markDelivered(
  db: Queryable,
  schema: Schema,
  delivery: ClaimedDelivery,
  status: number,
  actor: string,
): Promise<boolean> {
  const rows = await db.query(
    `with done as (
       update ${schema}.webhook_deliveries d
          set state = 'delivered',
              last_status = $3,
              last_error = null,
              locked_until = null,
              finished_at = now(),
              tries = n.tries
         from (${nextTries(schema, '$3::int', 'null::text')}) n
        where n.id = d.id
          and d.id = $1
          and d.attempts = $2
          and d.state = 'pending'
       returning d.id, d.job_id),
     sent as (
       update ${schema}.jobs
          set webhook_sent = true,
              updated_at = now()
        where id in (select job_id from done)
          and $4::boolean
          and not webhook_sent
       returning id),
     recorded as (${insertDeliveryEvent(schema, 'job.webhook_delivered')})
     select id from done`,
    [
      delivery.id,
      delivery.attempts,
      status,
      terminalEvents.has(delivery.event_type),
      actor,
      JSON.stringify(eventData(delivery, { status })),
    ],
  );
  return rows.length > 0;
}

async function finishUndelivered(
  db: Queryable,
  schema: Schema,
  delivery: ClaimedDelivery,
  state: 'failed' | 'disabled',
  error: string,
  status: number | null,
  actor: string,
): Promise<boolean> {
  const rows = await db.query(
    `with done as (
       update ${schema}.webhook_deliveries d
          set state = $4,
              last_status = $3,
              last_error = $7,
              locked_until = null,
              finished_at = now(),
              tries = n.tries
         from (${nextTries(schema, '$3::int', '$7::text')}) n
        where n.id = d.id
          and d.id = $1
          and d.attempts = $2
          and d.state = 'pending'
       returning d.id, d.job_id),
     recorded as (${insertDeliveryEvent(schema, 'job.webhook_failed')})
     select id from done`,
    [
      delivery.id,
      delivery.attempts,
      status,
      state,
      actor,
      JSON.stringify(eventData(delivery, { error, ...(status !== null && { status }) })),
      error,
    ],
  );
  if (rows.length > 0 && state === 'disabled') await disableAddress(db, schema, delivery.url);
  return rows.length > 0;
}

// A job that retention has deleted meanwhile gets no event.
function insertDeliveryEvent(schema: Schema, type: string): string {
  return `insert into ${schema}.events (xid, type, job_id, target_id, attempt, actor, data)
       select ${currentTransaction(schema)}, '${type}', j.id, j.target_id, j.attempt, $5, $6::jsonb from done join ${schema}.jobs j on j.id = done.job_id`;
}

function eventData(delivery: ClaimedDelivery, more: object): object {
  const { id, event_type, event_seq, url, attempts } = delivery;
  return { delivery_id: id, event: event_type, event_id: event_seq, url, attempts, ...more };
}

async function scheduleRetry(
  db: Queryable,
  schema: Schema,
  delivery: ClaimedDelivery,
  error: string,
  status: number | null,
): Promise<boolean> {
  const rows = await db.query(
    `update ${schema}.webhook_deliveries d
        set last_status = $3,
            last_error = $4,
            locked_until = null,
            tries = n.tries,
            next_at = n.next_at
       from (${nextTries(schema, '$3::int', '$4::text', `now() + $5::float8 * interval '1 millisecond'`)}) n
      where n.id = d.id
        and d.id = $1
        and d.attempts = $2
        and d.state = 'pending'
     returning d.id`,
    [delivery.id, delivery.attempts, status, error, backoffMs(deliveryBackoff, delivery.attempts, Math.random())],
  );
  return rows.length > 0;
}

// What a person wants to see of a receiver that fails for hours.
const maxTries = 20;

/** The delivery $1 with this attempt behind its earlier ones, computed in a select: a cluster refuses now() in an update. */
function nextTries(schema: Schema, status: string, error: string, nextAt = 'null::timestamptz'): string {
  return `select id, ${nextAt} as next_at,
                 (case when jsonb_array_length(tries) >= ${maxTries} then tries - 0 else tries end)
                   || jsonb_build_array(jsonb_build_object('at', now(), 'status', ${status}, 'error', ${error})) as tries
            from ${schema}.webhook_deliveries where id = $1`;
}

/** Disables pending deliveries for the same URL. Bounded: the others get a 410 of their own. */
async function disableAddress(db: Queryable, schema: Schema, url: string): Promise<void> {
  await db.query(
    `with waiting as (
       select id
         from ${schema}.webhook_deliveries
        where state = 'pending'
          and url = $1
        order by next_at
        limit 1000
          for update skip locked)
     update ${schema}.webhook_deliveries d
        set state = 'disabled',
            last_error = 'the receiver answered 410',
            locked_until = null,
            finished_at = now()
       from waiting w
      where d.id = w.id`,
    [url],
  );
}
