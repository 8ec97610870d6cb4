// Copies the capacity settings into the tenant's own table, where a row lock makes admission atomic. Queue '' is the whole
// tenant.
import type { Queryable } from '../database/database.ts';
import type { Schema } from '../database/identifiers.ts';
import type { TenantSettings } from './tenant.ts';

/** Whether the settings limit the cost units that may be leased at once. */
export function hasCapacities(settings: TenantSettings): boolean {
  return settings.capacity_units !== undefined || Object.keys(settings.queue_capacity_units ?? {}).length > 0;
}

/** Call in a transaction. Rows that stay keep their reservations. */
export async function mirrorCapacities(tx: Queryable, schema: Schema, settings: TenantSettings): Promise<void> {
  const totals = new Map<string, number>(Object.entries(settings.queue_capacity_units ?? {}));
  if (settings.capacity_units !== undefined) totals.set('', settings.capacity_units);
  // Locked in one order everywhere, so that concurrent changes do not deadlock.
  const queues = [...totals.keys()].sort();
  await tx.query(`delete from ${schema}.capacities where not (queue = any($1::text[]))`, [queues]);
  if (queues.length === 0) return;
  await tx.query(
    `insert into ${schema}.capacities (queue, total_units)
     select queue, total_units from unnest($1::text[], $2::int[]) as given (queue, total_units)
     on conflict (queue) do update set total_units = excluded.total_units`,
    [queues, queues.map((queue) => totals.get(queue))],
  );
}
