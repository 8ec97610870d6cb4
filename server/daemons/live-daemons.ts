// The daemons that are alive, as their registry shows them.
import type { Queryable } from '../database/database.ts';
import { controlSchema } from '../database/identifiers.ts';
import { lostAfterSeconds } from './list-daemons.ts';

export interface LiveDaemon {
  id: string;
  draining: boolean;
  running: number;
  jobTypes: string[];
}

export async function readLiveDaemons(db: Queryable): Promise<LiveDaemon[]> {
  const rows = await db.query<{ id: string; draining: boolean; running: number; job_types: string[] }>(
    `select id, draining, running, job_types from ${controlSchema}.daemons
      where last_beat_at > now() - $1 * interval '1 second' order by id`,
    [lostAfterSeconds],
  );
  return rows.map((row) => ({ id: row.id, draining: row.draining, running: row.running, jobTypes: row.job_types }));
}
