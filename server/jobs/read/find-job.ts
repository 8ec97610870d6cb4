// Reads one job with the times of its lease. Lists are in list-jobs.ts.
import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { type Job, type JobRow, toJob } from '../model/job.ts';

/** The columns of a job and its lease's times, for `from ${jobSource(schema)}`. */
export function jobSource(schema: Schema): string {
  return `${schema}.jobs j left join ${schema}.leases l on l.id = j.lease_id and l.state = 'ACTIVE' and j.lease_owner is not null`;
}
export const leaseColumns = 'l.expires_at as lease_expires_at, l.last_heartbeat_at as heartbeat_at';
const jobColumns = `j.*, ${leaseColumns}`;

export async function findJob(db: Queryable, schema: Schema, id: string): Promise<Job | undefined> {
  const rows = await db.query<JobRow>(`select ${jobColumns} from ${jobSource(schema)} where j.id = $1`, [id]);
  return rows[0] && toJob(rows[0]);
}
