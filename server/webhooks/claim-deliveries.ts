// Takes deliveries that are due, for one try each. Others leave a taken one alone until its lock
// runs out; a later delivery of a job waits until every earlier one has come to its end.
import type { Queryable } from '../database/database.ts';
import type { Schema } from '../database/identifiers.ts';

export interface ClaimedDelivery {
  id: string;
  job_id: string;
  event_type: string;
  event_xid: string;
  event_seq: string;
  url: string;
  /** JSON exactly as stored: it is signed and sent without being read. */
  body: string;
  /** Of this try, the first is 1; the fence of what is written about it. */
  attempts: number;
  /** When it was taken, by the database's clock. */
  claimed_at: string;
}

export async function claimDeliveries(
  db: Queryable,
  schema: Schema,
  options: { limit: number; lockSeconds: number },
): Promise<ClaimedDelivery[]> {
  return db.query<ClaimedDelivery>(
    `with due as (
       select d.id from ${schema}.webhook_deliveries d
        where d.state = 'pending' and d.next_at <= now()
          and not exists (select 1 from ${schema}.webhook_deliveries e
                           where e.job_id = d.job_id and e.event_seq < d.event_seq and e.state = 'pending')
        order by d.next_at limit $1 for update of d skip locked),
     taken as (select id, now() as at, now() + $2::float8 * interval '1 second' as until from due)
     update ${schema}.webhook_deliveries d set attempts = d.attempts + 1, next_at = t.until, locked_until = t.until
       from taken t where d.id = t.id
     returning d.id, d.job_id, d.event_type, d.event_xid, d.event_seq, d.url, d.body::text as body, d.attempts, t.at as claimed_at`,
    [options.limit, options.lockSeconds],
  );
}
