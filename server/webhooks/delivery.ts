// A delivery: one event on its way to one address. Its columns, and reading one.
import type { Queryable } from '../database/database.ts';
import type { Schema } from '../database/identifiers.ts';

export const deliveryStates = ['pending', 'delivered', 'failed', 'disabled'] as const;
export type DeliveryState = (typeof deliveryStates)[number];

export interface Delivery {
  id: string;
  job_id: string;
  event_xid: string;
  event_seq: string;
  event_type: string;
  url: string;
  state: DeliveryState;
  attempts: number;
  next_at: string;
  last_status: number | null;
  last_error: string | null;
  created_at: string;
  finished_at: string | null;
}

export const deliveryColumns =
  'id, job_id, event_xid, event_seq, event_type, url, state, attempts, next_at, last_status, last_error, created_at, finished_at';

export async function findDelivery(db: Queryable, schema: Schema, id: string): Promise<Delivery | undefined> {
  const rows = await db.query<Delivery>(`select ${deliveryColumns} from ${schema}.webhook_deliveries where id = $1`, [
    id,
  ]);
  return rows[0];
}

export interface DeliveryPage {
  deliveries: Delivery[];
  /** Id to go on behind; undefined at the end. */
  next: string | undefined;
}

// With a filter a page looks at this many rows at most, and may come out short.
const maxScanned = 5000;

interface Looked {
  looked_at: number;
  looked_to: string | null;
}

/** Newest first; ids grow with time. */
export async function listDeliveries(
  db: Queryable,
  schema: Schema,
  options: { before?: string | undefined; limit: number; state?: DeliveryState | undefined },
): Promise<DeliveryPage> {
  const { before, limit, state } = options;
  const most = state === undefined ? limit : maxScanned;
  const rows = await db.query<Looked & Delivery>(
    `with looked as (
       select * from ${schema}.webhook_deliveries where $1::uuid is null or id < $1::uuid order by id desc limit $2),
     wanted as (select * from looked where $3::text is null or state = $3::text order by id desc limit $4),
     whole as (select count(*)::int as looked_at, (array_agg(id order by id))[1] as looked_to from looked)
     select looked_at, looked_to, ${deliveryColumns} from whole left join wanted on true order by id desc`,
    [before ?? null, most, state ?? null, limit],
  );
  const deliveries = rows.filter((row) => row.id !== null).map(({ looked_at, looked_to, ...delivery }) => delivery);
  const [whole] = rows;
  const full = deliveries.length === limit;
  const ended = !full && (whole?.looked_at ?? 0) < most;
  return { deliveries, next: ended ? undefined : ((full ? deliveries.at(-1)?.id : whole?.looked_to) ?? undefined) };
}

/** Of one job, in the order of its events. */
export async function listJobDeliveries(
  db: Queryable,
  schema: Schema,
  jobId: string,
  limit: number,
): Promise<Delivery[]> {
  return db.query<Delivery>(
    `select ${deliveryColumns} from ${schema}.webhook_deliveries where job_id = $1 order by event_seq limit $2`,
    [jobId, limit],
  );
}
