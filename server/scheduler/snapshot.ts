// The capacity of this moment. Jobs and leases are counted by stats/read-counts.ts, for this API and for
// every other: two ways to count would disagree.
import type { Queryable } from '../database/database.ts';
import type { Schema } from '../database/identifiers.ts';
import { readCapacities, readUsedUnits } from './capacity.ts';

export interface CapacitySnapshot {
  /** Null: the tenant has no capacity, and nothing is ever denied. */
  total: number | null;
  used: number;
  reserved: number;
}

/** Of the whole tenant; if only single queues have a capacity, the sum of these. */
export async function readCapacitySnapshot(db: Queryable, schema: Schema): Promise<CapacitySnapshot> {
  const capacities = await readCapacities(db, schema, null);
  const whole = capacities.filter(({ queue }) => queue === '');
  const counted = whole.length > 0 ? whole : capacities;
  if (counted.length === 0) return { total: null, used: sum((await readUsedUnits(db, schema)).values()), reserved: 0 };
  return {
    total: sum(counted.map(({ total }) => total)),
    used: sum(counted.map(({ used }) => used)),
    reserved: sum(counted.map(({ reservation }) => reservation?.costUnits ?? 0)),
  };
}

function sum(units: Iterable<number>): number {
  return [...units].reduce((all, one) => all + one, 0);
}
