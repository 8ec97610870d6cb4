// A webhook delivery: one event for one URL. Reads deliveries, and resends them on request.
import { and, asc, desc, eq, gte, lt } from 'drizzle-orm';
import type { Queryable } from '../database/database.ts';
import type { Schema } from '../database/identifiers.ts';
import { build, columnList, columnsOf, defineRead, type RowOf } from '../database/reads/drizzle.ts';
import { statement, tenant } from '../database/sql.ts';
import { webhookDeliveries } from '../database/tables/tenant-log.ts';
import { normalizeUrl } from '../kernel/fields.ts';
import { firstUuid, lastUuid } from '../kernel/limits.ts';

export const deliveryStates = ['pending', 'delivered', 'failed', 'disabled'] as const;
export type DeliveryState = (typeof deliveryStates)[number];

const { body: _, lockedUntil: __, ...selection } = columnsOf(webhookDeliveries);

/** All columns except the body and the lock. */
const deliveryColumns = columnList(webhookDeliveries, selection);

export interface Delivery extends Omit<RowOf<typeof webhookDeliveries>, 'body' | 'lockedUntil' | 'tries'> {
  state: DeliveryState;
  tries: DeliveryTry[];
}

interface DeliveryTry {
  at: string;
  status: number | null;
  error: string | null;
}

const byId = defineRead<{ id: string }>()(({ id }) =>
  build
    .select({ ...selection, body: webhookDeliveries.body })
    .from(webhookDeliveries)
    .where(eq(webhookDeliveries.id, id)),
);
const ofJob = defineRead<{ jobId: string; limit: number }>()(({ jobId, limit }) =>
  build
    .select(selection)
    .from(webhookDeliveries)
    .where(eq(webhookDeliveries.jobId, jobId))
    .orderBy(asc(webhookDeliveries.eventSeq))
    .limit(limit),
);

/** With the body that is sent. */
export async function findDelivery(
  db: Queryable,
  schema: Schema,
  id: string,
): Promise<(Delivery & { body: unknown }) | undefined> {
  const [delivery] = await byId(db, schema, { id });
  return delivery as (Delivery & { body: unknown }) | undefined;
}

/** Reads the deliveries of one job, in the order of its events. */
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
  /** The cursor of the next page, which has smaller ids; undefined for the last page. */
  next: string | undefined;
}

// A page of one state reads at most this many rows, and may be short.
const maxScanned = 5000;

const page = defineRead<{ before: string; limit: number }>()(({ before, limit }) =>
  build
    .select(selection)
    .from(webhookDeliveries)
    .where(lt(webhookDeliveries.id, before))
    .orderBy(desc(webhookDeliveries.id))
    .limit(limit),
);
const pageOfState = defineRead<{ before: string; from: string; state: DeliveryState; limit: number }>()(
  ({ before, from, state, limit }) =>
    build
      .select(selection)
      .from(webhookDeliveries)
      .where(and(lt(webhookDeliveries.id, before), gte(webhookDeliveries.id, from), eq(webhookDeliveries.state, state)))
      .orderBy(desc(webhookDeliveries.id))
      .limit(limit),
);
/** Finds the last row that a page of one state may read; none if fewer rows are left. */
const lastToScan = defineRead<{ before: string }>()(({ before }) =>
  build
    .select({ id: webhookDeliveries.id })
    .from(webhookDeliveries)
    .where(lt(webhookDeliveries.id, before))
    .orderBy(desc(webhookDeliveries.id))
    .offset(maxScanned - 1)
    .limit(1),
);

/** Newest first: ids grow with time. */
export async function listDeliveries(
  db: Queryable,
  schema: Schema,
  options: { before?: string | undefined; limit: number; state?: DeliveryState | undefined },
): Promise<DeliveryPage> {
  const { before = lastUuid, limit, state } = options;
  if (state === undefined) {
    const deliveries = (await page(db, schema, { before, limit })) as Delivery[];
    return { deliveries, next: deliveries.length === limit ? deliveries.at(-1)?.id : undefined };
  }
  const [last] = await lastToScan(db, schema, { before });
  const from = last?.id ?? firstUuid;
  const deliveries = (await pageOfState(db, schema, { before, from, state, limit })) as Delivery[];
  return { deliveries, next: deliveries.length === limit ? deliveries.at(-1)?.id : last?.id };
}

const resendStatement = statement(`
  update ${tenant}.webhook_deliveries
     set state = 'pending',
         attempts = 0,
         next_at = now(),
         locked_until = null,
         finished_at = null
   where id = :id
  returning ${deliveryColumns}`);

/** Sends the delivery again, with all its attempts, whatever its state. Returns undefined if it does not exist. */
export async function resendDelivery(db: Queryable, schema: Schema, id: string): Promise<Delivery | undefined> {
  const [delivery] = await resendStatement.query<Delivery>(db, schema, { id });
  return delivery;
}

const enableStatement = statement(`
  update ${tenant}.webhook_deliveries
     set state = 'failed'
   where state = 'disabled'
     and url = any(:urls::text[])
  returning id`);

/** Sends new events to the URL again. Deliveries that were disabled become failed ones, which can be resent. */
export async function enableAddress(db: Queryable, schema: Schema, url: string): Promise<number> {
  // Deliveries of an older version have the URL as the client wrote it.
  const rows = await enableStatement.query(db, schema, { urls: [url, normalizeUrl(url)] });
  return rows.length;
}
