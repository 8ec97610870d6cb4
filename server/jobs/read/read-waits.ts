// Adds readable values to the waits of WAITING jobs: the title of a question, and the number of jobs that have not
// ended. A page of jobs costs at most two more statements.
import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { statement, tenant } from '../../database/sql.ts';
import { noStep } from '../flows/dependencies.ts';
import type { Status } from '../model/states.ts';
import type { NamedWaiting } from '../model/waiting.ts';

interface WaitingJob {
  id: string;
  status: Status;
  waiting: NamedWaiting | null;
}

// A page has many jobs, and each may have thousands of children. A page reads at most about 20 ms of index entries.
const maxUnfinished = 1000;
const maxCountedOfPage = 50_000;

const titlesStatement = statement(`
  select id, title
    from ${tenant}.questions
   where id = any(:ids::uuid[])`);

const unfinishedStatement = statement(`
  select h.id, u.unfinished
    from unnest(:ids::uuid[], :steps::text[]) as h(id, step)
   cross join lateral (
      select count(*)::int as unfinished
        from (
          select 1
            from ${tenant}.dependencies d
           where d.job_id = h.id
             and d.step = h.step
             and d.state in ('gated', 'open')
           limit :limit
        ) o
    ) u`);

/** Returns the same jobs. Costs nothing if none of them waits for a question or for jobs. */
export async function readWaits<J extends WaitingJob>(db: Queryable, schema: Schema, jobs: J[]): Promise<J[]> {
  const waits = jobs.flatMap(({ id, status, waiting }) =>
    status === 'WAITING' && waiting !== null ? [{ id, waiting }] : [],
  );
  const titles = await readTitles(db, schema, waits);
  const unfinished = await readUnfinished(db, schema, waits);
  if (titles.size === 0 && unfinished.size === 0) return jobs;
  return jobs.map((job) => {
    if (job.waiting === null) return job;
    const title = titles.get(job.waiting.question ?? '');
    const count = unfinished.get(job.id);
    return {
      ...job,
      waiting: {
        ...job.waiting,
        ...(title !== undefined && { title }),
        ...(count !== undefined && { unfinished: count }),
      },
    };
  });
}

/** The job waits for a question or for jobs. */
export function isNameable({ status, waiting }: Pick<WaitingJob, 'status' | 'waiting'>): boolean {
  return status === 'WAITING' && waiting !== null && (waiting.question !== undefined || isForJobs(waiting));
}

function isForJobs({ kind }: NamedWaiting): boolean {
  return kind === 'children' || kind === 'after';
}

type Waits = { id: string; waiting: NamedWaiting }[];

async function readTitles(db: Queryable, schema: Schema, waits: Waits): Promise<Map<string, string>> {
  const ids = waits.flatMap(({ waiting: { question } }) => (question === undefined ? [] : [question]));
  if (ids.length === 0) return new Map();
  const rows = await titlesStatement.query<{ id: string; title: string }>(db, schema, { ids });
  return new Map(rows.map(({ id, title }) => [id, title]));
}

/** Omits jobs that have too many children to count. */
async function readUnfinished(db: Queryable, schema: Schema, waits: Waits): Promise<Map<string, number>> {
  const parents = waits.filter(({ waiting }) => isForJobs(waiting));
  if (parents.length === 0) return new Map();
  const max = Math.min(maxUnfinished, Math.floor(maxCountedOfPage / parents.length));
  const rows = await unfinishedStatement.query<{ id: string; unfinished: number }>(db, schema, {
    ids: parents.map(({ id }) => id),
    steps: parents.map(({ waiting: { kind, step } }) => (kind === 'children' ? (step ?? noStep) : noStep)),
    limit: max + 1,
  });
  return new Map(rows.flatMap(({ id, unfinished }) => (unfinished > max ? [] : [[id, unfinished]])));
}
