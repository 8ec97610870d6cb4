// Capacity in cost units, of the tenant (queue '') and of single queues. Admission is atomic: it happens under the
// locks of these rows, and reads the leases in a statement after the lock. A job that does not fit reserves its units,
// and no job of equal or lower priority may use them, so that small jobs cannot starve a large one.

import type { Queryable } from '../database/database.ts';
import type { Schema } from '../database/identifiers.ts';
import { statement, tenant } from '../database/sql.ts';
import { isClaimable } from '../database/tables/tenant-jobs.ts';
import { claimedStatuses, statusIn } from '../jobs/model/states.ts';

export interface CapacityDemand {
  jobId: string;
  queue: string;
  /** 0 URGENT to 3 LOW. */
  priorityRank: number;
  costUnits: number;
}

interface Reservation {
  jobId: string;
  priorityRank: number;
  costUnits: number;
}

export interface Capacity {
  queue: string;
  total: number;
  used: number;
  reservation: Reservation | undefined;
}

export interface Shortage {
  used: number;
  requested: number;
  capacity: number;
  reserved: number;
}

// Several times the pause between two requests of a waiting worker, so it expires only if the worker has given up.
const reservationSeconds = 15;
/** How long a denied worker should wait before its next request. */
export const retryAfterSeconds = 2;

const lockStatement = statement(`
  select queue
    from ${tenant}.capacities
   where :queues::text[] is null
      or queue = any(:queues::text[])
   order by queue
     for update`);

const endReservation = statement(`
  update ${tenant}.capacities
     set reserved_job_id = null,
         reserved_until = null
   where queue = any(:queues::text[])`);

const reserveStatement = statement(`
  update ${tenant}.capacities
     set reserved_job_id = :jobId,
         reserved_until = now() + :reservationSeconds::float8 * interval '1 second'
   where queue = any(:queues::text[])`);

/** The locked capacities, and the decisions of one transaction about them. */
export class CapacityLedger {
  #tx: Queryable;
  #schema: Schema;
  #rows: Capacity[];

  private constructor(tx: Queryable, schema: Schema, rows: Capacity[]) {
    this.#tx = tx;
    this.#schema = schema;
    this.#rows = rows;
  }

  /** Locks the rows that apply to `queue`, or all of them. */
  static async lock(tx: Queryable, schema: Schema, queue?: string): Promise<CapacityLedger> {
    const queues = queue === undefined ? null : ['', queue];
    const locked = await lockStatement.query(tx, schema, { queues });
    return new CapacityLedger(tx, schema, locked.length === 0 ? [] : await readCapacities(tx, schema, queues));
  }

  get unlimited(): boolean {
    return this.#rows.length === 0;
  }

  /** Totals by queue, to exclude jobs that can never fit. */
  get totals(): { queue: string; total: number }[] {
    return this.#rows.map(({ queue, total }) => ({ queue, total }));
  }

  /** Returns the first capacity that the demand exceeds; undefined if it fits. */
  shortage(demand: CapacityDemand): (Shortage & { queue: string }) | undefined {
    for (const row of this.#binding(demand.queue)) {
      const reserved = reservedAgainst(row, demand);
      if (row.used + demand.costUnits + reserved > row.total) {
        return { queue: row.queue, used: row.used, requested: demand.costUnits, capacity: row.total, reserved };
      }
    }
    return undefined;
  }

  /** Counts the demand as used from now on, and ends its reservation. */
  async take(demand: CapacityDemand): Promise<void> {
    for (const row of this.#binding(demand.queue)) row.used += demand.costUnits;
    const mine = this.#rows.filter((row) => row.reservation?.jobId === demand.jobId);
    if (mine.length === 0) return;
    for (const row of mine) row.reservation = undefined;
    await endReservation.query(this.#tx, this.#schema, { queues: mine.map((row) => row.queue) });
  }

  /** Reserves units for a demand that did not fit, unless one of equal or higher priority has a reservation. */
  async reserve(demand: CapacityDemand): Promise<void> {
    const rows = this.#binding(demand.queue).filter(
      (row) =>
        // A job that can never fit must not block the others.
        demand.costUnits <= row.total && row.used + demand.costUnits > row.total && yields(row.reservation, demand),
    );
    if (rows.length === 0) return;
    for (const row of rows) row.reservation = { ...demand };
    await reserveStatement.query(this.#tx, this.#schema, {
      queues: rows.map((row) => row.queue),
      jobId: demand.jobId,
      reservationSeconds,
    });
  }

  #binding(queue: string): Capacity[] {
    return this.#rows.filter((row) => row.queue === '' || row.queue === queue);
  }
}

export function describeShortage(shortage: Shortage): string {
  const { used, requested, capacity, reserved } = shortage;
  const kept = reserved > 0 ? `, reserved=${reserved}` : '';
  return `Capacity exceeded: used=${used}, requested=${requested}, capacity=${capacity}${kept}`;
}

/** Units reserved for another job, which this one may not use. */
export function reservedAgainst({ reservation }: Capacity, demand: CapacityDemand): number {
  if (reservation === undefined || reservation.jobId === demand.jobId) return 0;
  return reservation.priorityRank <= demand.priorityRank ? reservation.costUnits : 0;
}

function yields(reservation: Reservation | undefined, demand: CapacityDemand): boolean {
  if (reservation === undefined || reservation.jobId === demand.jobId) return true;
  return demand.priorityRank < reservation.priorityRank;
}

interface CapacityRow {
  queue: string;
  total_units: number;
  reserved_job_id: string | null;
  reserved_priority: number | null;
  reserved_units: number | null;
}

const capacitiesStatement = statement(`
  select c.queue, c.total_units, r.id as reserved_job_id, r.priority as reserved_priority, r.cost_units as reserved_units
    from ${tenant}.capacities c
    left join ${tenant}.jobs r
      on r.id = c.reserved_job_id
     and c.reserved_until > now()
     and ${statusIn(['QUEUED', ...claimedStatuses], 'r.status')}
   where :queues::text[] is null
      or c.queue = any(:queues::text[])
   order by c.queue`);

/** Reads capacities with their used and reserved units; for all queues if `queues` is null. */
export async function readCapacities(tx: Queryable, schema: Schema, queues: string[] | null): Promise<Capacity[]> {
  const rows = await capacitiesStatement.query<CapacityRow>(tx, schema, { queues });
  const used = await readUsedUnits(tx, schema);
  const total = [...used.values()].reduce((sum, units) => sum + units, 0);
  return rows.map((row) => ({
    queue: row.queue,
    total: row.total_units,
    used: row.queue === '' ? total : (used.get(row.queue) ?? 0),
    reservation:
      row.reserved_job_id === null
        ? undefined
        : { jobId: row.reserved_job_id, priorityRank: row.reserved_priority ?? 0, costUnits: row.reserved_units ?? 0 },
  }));
}

const usedStatement = statement(`
  select j.queue, sum(case when l.kind = 'remote' then l.cost_units else j.cost_units end)::text as units
    from ${tenant}.leases l
   cross join lateral unnest(l.job_ids) as held(job_id)
    join ${tenant}.jobs j on j.id = held.job_id and j.lease_id = l.id
   where l.state = 'ACTIVE'
     and l.kind in ('local', 'remote')
     and j.status = 'RUNNING'
   group by j.queue`);

/** The cost of the running jobs of all active leases, remote and local, by queue. */
async function readUsedUnits(tx: Queryable, schema: Schema): Promise<Map<string, number>> {
  const rows = await usedStatement.query<{ queue: string; units: string }>(tx, schema, {});
  return new Map(rows.map((row) => [row.queue, Number(row.units)]));
}

/** Jobs and leases of the same snapshot are counted by stats/read-counts.ts. */
export interface CapacitySnapshot {
  /** Null if the tenant has no capacity, and nothing is ever denied. */
  total: number | null;
  used: number;
  reserved: number;
}

/** For the whole tenant; if only single queues have a capacity, their sum. */
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

/** One queue: its capacity, its running jobs, and the jobs that could start now if there were room. */
export interface QueueUnits {
  queue: string;
  /** Null if the queue has no capacity of its own. */
  total: number | null;
  used: number;
  requested: number;
  /** Jobs that request them. */
  waiting: number;
  reserved: number;
}

// The limit per kind of waiting job; beyond it the numbers are lower bounds.
const maxRequests = 20_000;

const requestsStatement = statement(`
  select queue, sum(cost_units)::float8 as units, count(*)::int as waiting
    from (
      (select queue, cost_units from ${tenant}.jobs where ${isClaimable('daemon')} limit :maxRequests)
      union all
      (select queue, cost_units from ${tenant}.jobs where ${isClaimable('remoteWorker')} limit :maxRequests)
      union all
      (select j.queue, j.cost_units
         from ${tenant}.leases l
        cross join lateral unnest(l.job_ids) as held(job_id)
         join ${tenant}.jobs j on j.id = held.job_id and j.lease_id = l.id
        where l.state = 'ACTIVE'
          and l.kind = 'claim'
          and ${statusIn(claimedStatuses, 'j.status')}
        limit :maxRequests)
    ) w
   group by queue`);

/** Every queue with a capacity, a running job or a job that could start. */
export async function readQueueUnits(db: Queryable, schema: Schema): Promise<QueueUnits[]> {
  const capacities = await readCapacities(db, schema, null);
  const used = await readUsedUnits(db, schema);
  const requests = await requestsStatement.query<{ queue: string; units: number; waiting: number }>(db, schema, {
    maxRequests,
  });
  const wanted = new Map(requests.map((row) => [row.queue, row]));
  const bounds = new Map(capacities.filter(({ queue }) => queue !== '').map((row) => [row.queue, row]));
  const queues = new Set([...bounds.keys(), ...used.keys(), ...wanted.keys()]);
  return [...queues].sort().map((queue) => ({
    queue,
    total: bounds.get(queue)?.total ?? null,
    used: used.get(queue) ?? 0,
    requested: wanted.get(queue)?.units ?? 0,
    waiting: wanted.get(queue)?.waiting ?? 0,
    reserved: bounds.get(queue)?.reservation?.costUnits ?? 0,
  }));
}

function sum(units: Iterable<number>): number {
  return [...units].reduce((all, one) => all + one, 0);
}
