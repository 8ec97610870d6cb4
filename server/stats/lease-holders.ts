// The daemons and remote workers that hold active leases of a tenant, and their jobs that a drain will interrupt,
// estimated from their progress.
import { listDaemons } from '../daemon-registry/live-daemons.ts';
import type { Queryable } from '../database/database.ts';
import type { Schema } from '../database/identifiers.ts';
import { statement, tenant } from '../database/sql.ts';

export interface TenantWorker {
  id: string;
  kind: 'daemon' | 'remote';
  running: number;
  last_heartbeat_at: string;
  /** Only for daemons. */
  state: 'alive' | 'draining' | 'lost' | null;
  drain_ends_at: string | null;
  /** For a draining daemon: its jobs, those that will miss the end of the grace period first. */
  draining_jobs: DrainingJob[];
}

interface DrainingJob {
  job_id: string;
  type: string;
  target_id: string | null;
  started_at: string;
  progress: number | null;
  /** Null if the job has reported no progress. */
  expected_at: string | null;
  misses_drain: boolean | null;
}

// A tenant has fewer leases than this in practice; the page shows a screen of them.
const maxLeases = 2000;
const maxDrainingJobs = 100;

const holdersStatement = statement(`
  select owner,
         bool_or(kind <> 'local') as remote,
         sum(cardinality(job_ids))::int as running,
         max(last_heartbeat_at) as heartbeat
    from (
      select owner, kind, job_ids, last_heartbeat_at
        from ${tenant}.leases
       where state = 'ACTIVE'
       limit :maxLeases
    ) l
   group by owner
   order by owner`);

export async function readTenantWorkers(db: Queryable, schema: Schema): Promise<TenantWorker[]> {
  const rows = await holdersStatement.query<{ owner: string; remote: boolean; running: number; heartbeat: string }>(
    db,
    schema,
    { maxLeases },
  );
  const daemons = new Map((await listDaemons(db)).map((daemon) => [daemon.id, daemon]));
  return Promise.all(
    rows.map(async ({ owner, remote, running, heartbeat }) => {
      const daemon = remote ? undefined : daemons.get(owner);
      const endsAt = daemon?.state === 'draining' ? daemon.drain_ends_at : null;
      return {
        id: owner,
        kind: remote ? ('remote' as const) : ('daemon' as const),
        running,
        last_heartbeat_at: heartbeat,
        state: daemon?.state ?? null,
        drain_ends_at: endsAt,
        draining_jobs: endsAt === null ? [] : await readDrainingJobs(db, schema, owner, endsAt),
      };
    }),
  );
}

const drainingStatement = statement(`
  with held as (
    select unnest(job_ids) as id
      from ${tenant}.leases
     where state = 'ACTIVE'
       and owner = :owner
     limit :limit
  ),
  running as (
    select j.id, j.type, j.target_id, j.started_at, j.progress,
           case
             when j.progress > 0
             then j.started_at + (now() - j.started_at) * (100 / least(j.progress, 100))
           end as expected_at
      from held h
      join ${tenant}.jobs j on j.id = h.id
     where j.status = 'RUNNING'
       and j.lease_owner = :owner
  )
  select id as job_id, type, target_id, started_at, progress, expected_at,
         expected_at > :endsAt::timestamptz as misses_drain
    from running
   order by misses_drain desc nulls last, expected_at desc, id`);

/** A job whose progress has gone from 0 to 40 % in two minutes is expected to need three more. */
function readDrainingJobs(db: Queryable, schema: Schema, owner: string, endsAt: string): Promise<DrainingJob[]> {
  return drainingStatement.query<DrainingJob>(db, schema, { owner, endsAt, limit: maxDrainingJobs });
}
