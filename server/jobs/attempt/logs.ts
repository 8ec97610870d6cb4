// The lines that a job's handler logs: written in batches by the lease holder, bounded per job
// (the newest stay), read page by page.
import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { jsonBytes, withinBytes } from '../../database/json-bytes.ts';
import type { HeldJob } from '../claim/lease.ts';

export interface NewLogLine {
  level: 'info' | 'warn' | 'error';
  message: string;
  data?: Record<string, unknown> | undefined;
  /** How long ago it was said: the database's clock dates it. */
  ageMs: number;
}

export interface LogLine {
  seq: string;
  at: string;
  attempt: number;
  level: string;
  message: string;
  data: Record<string, unknown> | null;
}

/** Lines that are kept of one job. */
export const maxLogLines = 1000;

/** False: the lease no longer owns the job, and nothing was written. */
export async function appendLogs(db: Queryable, schema: Schema, held: HeldJob, lines: NewLogLine[]): Promise<boolean> {
  const rows = await db.query(
    `with held as (
       select id, attempt, now() as at from ${schema}.jobs where id = $1 and lease_id = $2 and status = 'RUNNING' for share),
     said as (
       insert into ${schema}.job_logs (job_id, at, attempt, level, message, data)
       select h.id, h.at - l.age * interval '1 millisecond', h.attempt, l.level, l.message, l.data
         from held h cross join jsonb_to_recordset($3::jsonb) as l(age float8, level text, message text, data jsonb))
     select id from held`,
    [
      held.jobId,
      held.leaseId,
      JSON.stringify(lines.map((l) => ({ age: l.ageMs, level: l.level, message: l.message, data: l.data ?? null }))),
    ],
  );
  return rows.length > 0;
}

/** Removes what lies before the newest lines. */
export async function trimLogs(db: Queryable, schema: Schema, jobId: string, keep = maxLogLines): Promise<void> {
  await db.query(
    `with last as (
       select seq from ${schema}.job_logs where job_id = $1 order by seq desc offset $2 limit 1)
     delete from ${schema}.job_logs l using last where l.job_id = $1 and l.seq <= last.seq`,
    [jobId, keep],
  );
}

export interface LogPage {
  /** Only lines behind this one. */
  after?: string | undefined;
  limit: number;
}

/** In the order in which they were written. Fewer than the limit if they are long: the last tells where to go on. */
export async function listLogs(db: Queryable, schema: Schema, jobId: string, page: LogPage): Promise<LogLine[]> {
  const lines = `select seq, at, attempt, level, message, data, octet_length(message) + ${jsonBytes('data')} as bytes
       from ${schema}.job_logs where job_id = $1 and seq > $2::bigint order by seq limit $3`;
  return db.query<LogLine>(
    `select seq, at, attempt, level, message, data from (${withinBytes(lines, 'seq')}) as fitting order by seq`,
    [jobId, page.after ?? '0', page.limit],
  );
}
