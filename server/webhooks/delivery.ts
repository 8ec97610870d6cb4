// A webhook delivery: one event for one URL. Reads deliveries, and sends them again when a person asks for it.
import { asc, eq } from 'drizzle-orm';
import type { Queryable } from '../database/database.ts';
import { build, columnList, columnsOf, defineRead, type RowOf } from '../database/drizzle.ts';
import type { Schema } from '../database/identifiers.ts';
import { webhookDeliveries } from '../database/tables/tenant-log.ts';
import { normalizeUrl } from '../kernel/fields.ts';

export const deliveryStates = ['pending', 'delivered', 'failed', 'disabled'] as const;
export type DeliveryState = (typeof deliveryStates)[number];

const { body: _, lockedUntil: __, ...selection } = columnsOf(webhookDeliveries);

/** All columns but the body that is sent and the lock of the daemon that sends it. */
const deliveryColumns = columnList(webhookDeliveries, selection);

export interface Delivery extends Omit<RowOf<typeof webhookDeliveries>, 'body' | 'lockedUntil'> {
  state: DeliveryState;
}

const byId = defineRead<{ id: string }>()(({ id }) =>
  build.select(selection).from(webhookDeliveries).where(eq(webhookDeliveries.id, id)),
);
const ofJob = defineRead<{ jobId: string; limit: number }>()(({ jobId, limit }) =>
  build
    .select(selection)
    .from(webhookDeliveries)
    .where(eq(webhookDeliveries.jobId, jobId))
    .orderBy(asc(webhookDeliveries.eventSeq))
    .limit(limit),
);

export async function findDelivery(db: Queryable, schema: Schema, id: string): Promise<Delivery | undefined> {
  const [delivery] = await byId(db, schema, { id });
  return delivery as Delivery | undefined;
}

/** Of one job, in the order of its events. */
export async function listJobDeliveries(
  db: Queryable,
  schema: Schema,
  jobId: string,
  limit: number,
): Promise<Delivery[]> {
  return (await ofJob(db, schema, { jobId, limit })) as Delivery[];
}

export interface DeliveryPage {
  deliveries: Delivery[];
  /** The next page has smaller ids than this; undefined: this is the last page. */
  next: string | undefined;
}

// With a filter a page reads this many rows at most, and may be short.
const maxScanned = 5000;

/** Newest first: ids grow with time. One statement reads the rows, filters them and counts what it read. */
export async function listDeliveries(
  db: Queryable,
  schema: Schema,
  options: { before?: string | undefined; limit: number; state?: DeliveryState | undefined },
): Promise<DeliveryPage> {
  const { before, limit, state } = options;
  const maxRows = state === undefined ? limit : maxScanned;
  const rows = await db.query<Delivery & { scanned: number; scannedTo: string | null }>(
    `with scanned as (
       select * from ${schema}.webhook_deliveries
        where $1::uuid is null or id < $1::uuid
        order by id desc
        limit $2),
     matching as (
       select * from scanned
        where $3::text is null or state = $3::text
        order by id desc
        limit $4),
     total as (
       select count(*)::int as scanned, (array_agg(id order by id))[1] as "scannedTo" from scanned)
     select total.scanned, total."scannedTo", ${deliveryColumns}
       from total
       left join matching on true
      order by id desc`,
    [before ?? null, maxRows, state ?? null, limit],
  );
  const deliveries = rows.filter((row) => row.id !== null).map(({ scanned, scannedTo, ...delivery }) => delivery);
  const isFull = deliveries.length === limit;
  const isLast = !isFull && (rows[0]?.scanned ?? 0) < maxRows;
  if (isLast) return { deliveries, next: undefined };
  return { deliveries, next: (isFull ? deliveries.at(-1)?.id : rows[0]?.scannedTo) ?? undefined };
}

/** With a fresh set of tries, whatever became of it before. Undefined: there is no such delivery. */
export async function resendDelivery(db: Queryable, schema: Schema, id: string): Promise<Delivery | undefined> {
  const rows = await db.query<Delivery>(
    `update ${schema}.webhook_deliveries set state = 'pending', attempts = 0, next_at = now(), locked_until = null, finished_at = null
      where id = $1 returning ${deliveryColumns}`,
    [id],
  );
  return rows[0];
}

/** New events go to the address again. Those held back meanwhile stay as failed ones, to be resent by hand. */
export async function enableAddress(db: Queryable, schema: Schema, url: string): Promise<number> {
  const rows = await db.query(
    `update ${schema}.webhook_deliveries set state = 'failed' where state = 'disabled' and url = any($1::text[]) returning id`,
    // Deliveries of an older version keep the address as it was typed.
    [[url, normalizeUrl(url)]],
  );
  return rows.length;
}
