// The log lines of a job's handler. The lease holder writes them in batches. Only the newest lines of a job are kept,
// and they are read page by page.

import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { jsonBytes, withinBytes } from '../../database/reads/bounded-reads.ts';
import { statement, tenant } from '../../database/sql.ts';
import { type HeldJob, lockHeld } from '../claim/lease.ts';

export interface NewLogLine {
  level: 'info' | 'warn' | 'error';
  message: string;
  data?: Record<string, unknown> | undefined;
  /** Milliseconds since the line was logged. The database's clock gives the line its time. */
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

/** The maximum number of lines that are kept per job. */
export const maxLogLines = 1000;

const appendStatement = statement(`
  with ${lockHeld('j.id, j.attempt, now() as at')},
  appended as (
    insert into ${tenant}.job_logs (job_id, at, attempt, level, message, data)
    select h.id, h.at - l.age * interval '1 millisecond', h.attempt, l.level, l.message, l.data
      from held h
     cross join jsonb_to_recordset(:lines::jsonb) as l(age float8, level text, message text, data jsonb)
  )
  select id from held`);

/** Returns false if the lease no longer owns the job, and nothing was written. */
export async function appendLogs(
  db: Queryable,
  schema: Schema,
  { jobId, leaseId }: HeldJob,
  lines: NewLogLine[],
): Promise<boolean> {
  const entries = lines.map((l) => ({ age: l.ageMs, level: l.level, message: l.message, data: l.data ?? null }));
  const rows = await appendStatement.query(db, schema, { jobId, leaseId, lines: JSON.stringify(entries) });
  return rows.length > 0;
}

const trimStatement = statement(`
  with last as (
    select seq
      from ${tenant}.job_logs
     where job_id = :jobId
     order by seq desc
    offset :keep
     limit 1
  )
  delete from ${tenant}.job_logs l
   using last
   where l.job_id = :jobId
     and l.seq <= last.seq`);

/** Deletes all but the newest lines. */
export async function trimLogs(db: Queryable, schema: Schema, jobId: string, keep = maxLogLines): Promise<void> {
  await trimStatement.query(db, schema, { jobId, keep });
}

export interface LogPage {
  /** Only lines after this one. */
  after?: string | undefined;
  limit: number;
}

const linesWithinBytes = withinBytes(
  `
      select seq, at, attempt, level, message, data, octet_length(message) + ${jsonBytes('data')} as bytes
        from ${tenant}.job_logs
       where job_id = :jobId
         and seq > :after::bigint
       order by seq
       limit :limit`,
  'seq',
);
const listStatement = statement(`
  select seq, at, attempt, level, message, data
    from (${linesWithinBytes}) as fitting
   order by seq`);

/**
 * Returns lines in the order in which they were written. Returns fewer than the limit if they are long; the next page
 * starts after the last one.
 */
export async function listLogs(db: Queryable, schema: Schema, jobId: string, page: LogPage): Promise<LogLine[]> {
  return listStatement.query<LogLine>(db, schema, { jobId, after: page.after ?? '0', limit: page.limit });
}
