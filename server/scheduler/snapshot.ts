// The numbers of this moment: capacity, jobs and leases of one tenant. Each count walks a partial
// index that holds little more than what is counted, however long the history is.
import type { Queryable } from '../database/database.ts';
import type { Schema } from '../database/identifiers.ts';
import { readCapacities, readUsedUnits } from './capacity.ts';

export interface Snapshot {
  /** `total` is null when the tenant has no capacity: nothing is ever denied. */
  capacity: { total: number | null; used: number; reserved: number };
  jobs: { queued: number; running: number; failed_last_24h: number };
  leases: { active: number; expired_last_24h: number };
}

// Beyond it the exact number helps nobody, and counting would cost more than it tells.
const mostCounted = 100_000;

// Every waiting job is in exactly one of these, and each is the condition of an index.
const waiting = [
  `status = 'QUEUED' and lane_head and not remote`,
  `status = 'QUEUED' and lane_head and remote`,
  `lane_rank is not null and status = 'QUEUED'`,
  `status = 'PENDING'`,
];

export async function readSnapshot(db: Queryable, schema: Schema): Promise<Snapshot> {
  return { capacity: await readTotal(db, schema), ...(await readCounts(db, schema)) };
}

async function readTotal(db: Queryable, schema: Schema): Promise<Snapshot['capacity']> {
  const [whole] = await readCapacities(db, schema, ['']);
  if (whole) return { total: whole.total, used: whole.used, reserved: whole.reservation?.costUnits ?? 0 };
  const used = await readUsedUnits(db, schema);
  return { total: null, used: [...used.values()].reduce((sum, units) => sum + units, 0), reserved: 0 };
}

async function readCounts(db: Queryable, schema: Schema): Promise<Pick<Snapshot, 'jobs' | 'leases'>> {
  const [row] = await db.query<{
    queued: string;
    running: string;
    failed: string;
    active: string;
    expired: string;
  }>(
    `select
       ${waiting.map((where) => `(select count(*) from (select 1 from ${schema}.jobs where ${where} limit $1) as q)`).join(' + ')}
         as queued,
       (select count(*) from ${schema}.leases l cross join lateral unnest(l.job_ids) as held(job_id)
          join ${schema}.jobs j on j.id = held.job_id and j.lease_id = l.id
         where l.state = 'ACTIVE' and j.status = 'RUNNING') as running,
       (select count(*) from (select 1 from ${schema}.jobs
         where status = 'ERROR' and finished_at > now() - interval '24 hours' limit $1) as f) as failed,
       (select count(*) from ${schema}.leases where state = 'ACTIVE' and kind = 'remote' and expires_at > now()) as active,
       (select count(*) from (select 1 from ${schema}.leases
         where released_at > now() - interval '24 hours' and state = 'EXPIRED' limit $1) as e) as expired`,
    [mostCounted],
  );
  return {
    jobs: {
      queued: Number(row?.queued ?? 0),
      running: Number(row?.running ?? 0),
      failed_last_24h: Number(row?.failed ?? 0),
    },
    leases: { active: Number(row?.active ?? 0), expired_last_24h: Number(row?.expired ?? 0) },
  };
}
