// Reading the registry of daemons: who lives, drains, or fell silent. For people only: who owns a job
// is decided by leases, never by this table. Each daemon writes its own row (worker/registration.ts).
import type { Queryable } from '../database/database.ts';
import { controlSchema } from '../database/identifiers.ts';

/** A daemon that has not beaten for this long counts as lost: three beats of an idle one. */
export const lostAfterSeconds = 30;

export interface DaemonRow {
  id: string;
  incarnation: string;
  host: string;
  pid: number;
  version: string;
  started_at: string;
  last_beat_at: string;
  seconds_since_beat: number;
  state: 'alive' | 'draining' | 'lost';
  running: number;
  job_types: string[];
}

/** `lost`: silent for half a minute. It crashed, or it cannot reach the database. */
export async function listDaemons(db: Queryable): Promise<DaemonRow[]> {
  return db.query<DaemonRow>(
    `select id, incarnation, host, pid, version, started_at, last_beat_at, running, job_types,
            extract(epoch from now() - last_beat_at)::float8 as seconds_since_beat,
            case when last_beat_at < now() - $1::float8 * interval '1 second' then 'lost'
                 when draining then 'draining' else 'alive' end as state
       from ${controlSchema}.daemons order by id`,
    [lostAfterSeconds],
  );
}
