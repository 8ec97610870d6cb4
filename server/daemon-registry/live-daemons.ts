// Reads the table of daemons, for the API and to find daemons that could run a job. Leases decide which daemon owns a
// job, never this table. registration.ts writes it.
import type { Queryable } from '../database/database.ts';
import { controlSchema } from '../database/identifiers.ts';
import { runQuery } from '../database/sql.ts';

/** A daemon is live if its row was written within this time: three heartbeats of an idle daemon. */
export const liveSeconds = 30;

interface DaemonRow {
  id: string;
  incarnation: string;
  host: string;
  pid: number;
  version: string;
  started_at: string;
  last_beat_at: string;
  seconds_since_beat: number;
  /** `lost`: it crashed, or it cannot reach the database. */
  state: 'alive' | 'draining' | 'lost';
  /** The end of its drain's grace period. Jobs that still run then are paused or requeued. */
  drain_ends_at: string | null;
  running: number;
  job_types: string[];
}

export async function listDaemons(db: Queryable): Promise<DaemonRow[]> {
  return runQuery<DaemonRow>(
    db,
    `select id, incarnation, host, pid, version, started_at, last_beat_at, running, job_types, drain_ends_at,
            extract(epoch from now() - last_beat_at)::float8 as seconds_since_beat,
            case
              when last_beat_at < now() - :liveSeconds::float8 * interval '1 second' then 'lost'
              when draining then 'draining'
              else 'alive'
            end as state
       from ${controlSchema}.daemons
      order by id`,
    { liveSeconds },
  );
}

export interface LiveDaemon {
  id: string;
  draining: boolean;
  running: number;
  jobTypes: string[];
}

export async function readLiveDaemons(db: Queryable): Promise<LiveDaemon[]> {
  const rows = await runQuery<Pick<LiveDaemon, 'id' | 'draining' | 'running'> & { job_types: string[] }>(
    db,
    `select id, draining, running, job_types
       from ${controlSchema}.daemons
      where last_beat_at > now() - :liveSeconds::float8 * interval '1 second'
      order by id`,
    { liveSeconds },
  );
  return rows.map(({ job_types, ...row }) => ({ ...row, jobTypes: job_types }));
}
