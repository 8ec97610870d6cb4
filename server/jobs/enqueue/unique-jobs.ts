// Unique jobs: at most one job of a type holds a key at a time. The primary key of `unique_keys` and the lock on its
// row decide before the job is inserted. The status of the job says whether it still holds the key, so starting and
// ending jobs write nothing here, and jobs without a key cost nothing.
import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { statement, tenant } from '../../database/sql.ts';
import { insertEvents } from '../../events/log/record.ts';
import { newId } from '../../kernel/ids.ts';
import { writeJson } from '../../kernel/json/json-text.ts';
import { limitKeysSql, limitsForSql } from '../limits/limit-keys.ts';
import type { Job } from '../model/job.ts';
import { replaceableStatuses, statusIn, terminalStatuses } from '../model/states.ts';
import { never } from '../model/waiting.ts';
import { findJob, readJobsByRequestIds } from '../read/read-jobs.ts';
import type { Enqueued, NewJob, Unique, UniqueOutcome } from './new-job.ts';

interface KeyedJob {
  job: NewJob;
  unique: Unique;
}

type InsertJobs = (jobs: NewJob[]) => Promise<Enqueued[]>;

/** Inserts the jobs whose keys are free. For the others, returns the job that holds the key. */
export async function insertUnique(
  tx: Queryable,
  schema: Schema,
  newJobs: NewJob[],
  actor: string,
  insert: InsertJobs,
): Promise<Enqueued[]> {
  if (newJobs.every((job) => job.unique === undefined)) return insert(newJobs);
  const jobs = newJobs.map((job) => (job.unique === undefined ? job : { ...job, id: job.id ?? newId() }));
  const holders = await findHolders(tx, schema, jobs);
  const replays = holders.size === 0 ? new Set<string>() : await findReplays(tx, schema, jobs);
  // The first job of a call holds the key for later ones.
  const first = new Map<string, NewJob>();
  const conflicts = new Map<number, string>();
  const free: NewJob[] = [];
  for (const [n, job] of jobs.entries()) {
    const name = nameOf(job);
    const earlier = name === undefined ? undefined : first.get(name);
    const isReplay = replays.has(job.clientRequestId ?? '');
    const holder = name === undefined || isReplay ? undefined : (earlier?.id ?? holders.get(name));
    if (holder !== undefined) conflicts.set(n, holder);
    else {
      if (name !== undefined && !isReplay) first.set(name, job);
      free.push(job);
    }
  }
  const inserted = free.length === 0 ? [] : await insert(free);
  await setHolders(tx, schema, free, inserted);
  // After the locks on lanes: the end of an attempt locks the lane before the job.
  const results: Enqueued[] = [];
  const byPlaced = new Map(free.map((job, n) => [job.id, inserted[n]]));
  for (const [n, job] of jobs.entries()) {
    const holder = conflicts.get(n);
    results.push(
      holder === undefined
        ? (inserted[free.indexOf(job)] as Enqueued)
        : await applyConflict(
            tx,
            schema,
            byPlaced.get(holder)?.job.id ?? holder,
            job as NewJob & { unique: Unique },
            actor,
          ),
    );
  }
  return results;
}

function nameOf({ type, unique }: NewJob): string | undefined {
  return unique === undefined ? undefined : JSON.stringify([type, unique.key]);
}

function keyedOf(jobs: readonly NewJob[]): KeyedJob[] {
  return jobs.flatMap((job) => (job.unique === undefined ? [] : [{ job, unique: job.unique }]));
}

const lockStatement = statement(`
  insert into ${tenant}.unique_keys (type, key, used_at)
  select distinct type, key, now()
    from jsonb_to_recordset(:keys::jsonb) as g(type text, key text)
   order by type, key
  on conflict (type, key) do update
     set used_at = excluded.used_at`);

const holdersStatement = statement(`
  select u.type, u.key, u.job_id as "jobId"
    from jsonb_to_recordset(:keys::jsonb) as g(type text, key text)
    join ${tenant}.unique_keys u on u.type = g.type and u.key = g.key
    join ${tenant}.jobs j on j.id = u.job_id
   where case
           when u.held_until is not null then u.held_until > now()
           when ${statusIn(terminalStatuses, 'j.status')} then false
           else u.until = 'finished' or j.attempt = 0
         end`);

/** Locks the keys in order until the end of the transaction, and returns the jobs that hold them. */
async function findHolders(tx: Queryable, schema: Schema, jobs: readonly NewJob[]): Promise<Map<string, string>> {
  const keys = JSON.stringify(keyedOf(jobs).map(({ job, unique }) => ({ type: job.type, key: unique.key })));
  await lockStatement.query(tx, schema, { keys });
  // This is a separate statement, so that it sees rows committed before the locks were granted.
  const rows = await holdersStatement.query<{ type: string; key: string; jobId: string }>(tx, schema, { keys });
  return new Map(rows.map(({ type, key, jobId }) => [JSON.stringify([type, key]), jobId]));
}

/**
 * Finds requests that were accepted before and whose answer was lost. They get the same answer, even if another job
 * holds the key now.
 */
async function findReplays(tx: Queryable, schema: Schema, jobs: readonly NewJob[]): Promise<Set<string>> {
  const ids = keyedOf(jobs).flatMap(({ job }) => job.clientRequestId ?? []);
  if (ids.length === 0) return new Set();
  const known = await readJobsByRequestIds(tx, schema, ids, { withDocuments: false });
  return new Set(known.map((job) => job.clientRequestId as string));
}

const setStatement = statement(`
  with given as (
    select g.*, now() + g.seconds * interval '1 second' as held_until
      from jsonb_to_recordset(:holders::jsonb) as g(type text, key text, job_id uuid, until text, seconds float8)
  )
  update ${tenant}.unique_keys u
     set job_id = g.job_id,
         until = g.until,
         held_until = g.held_until
    from given g
   where u.type = g.type
     and u.key = g.key`);

/** A job that was found under its idempotency key does not take the unique key again. */
async function setHolders(tx: Queryable, schema: Schema, jobs: NewJob[], inserted: Enqueued[]): Promise<void> {
  const holders = jobs.flatMap(({ type, unique }, n) => {
    const enqueued = inserted[n];
    if (unique === undefined || enqueued?.kind !== 'created') return [];
    const { key, until } = unique;
    const held = typeof until === 'number' ? { until: 'seconds', seconds: until } : { until, seconds: null };
    return [{ type, key, job_id: enqueued.job.id, ...held }];
  });
  if (holders.length > 0) await setStatement.query(tx, schema, { holders: JSON.stringify(holders) });
}

// Only jobs that never started and have no owner are changed. A due job stays due and keeps its position. If the new
// payload has other limit keys, the job passes the gate again.
const replaceStatement = statement(`
  with given as (
    select :runAt::timestamptz as run_at, now() as at, j.author, j.payload, ${limitKeysSql} as limit_keys
      from (
        select id, type, queue, remote, target_id, coalesce(:author::text, author) as author, :payload::jsonb as payload
          from ${tenant}.jobs
         where id = :jobId
      ) as j
  ),
  changed as (
    update ${tenant}.jobs j
       set payload = g.payload,
           author = g.author,
           limit_keys = g.limit_keys,
           gated = case when j.limit_keys is not distinct from g.limit_keys then j.gated
                     else j.status = 'QUEUED' and g.limit_keys is not null end,
           run_at = case when :moves::boolean and j.status = 'PENDING' then coalesce(g.run_at, g.at) else j.run_at end,
           updated_at = g.at
      from given g
     where j.id = :jobId
       and j.attempt = 0
       and ${statusIn(replaceableStatuses, 'j.status')}
    returning j.id, j.target_id, j.status, j.attempt, j.lease_id, j.run_at
  ),
  recorded as (
    ${insertEvents(tenant, {
      source: 'changed',
      type: `'job.replaced'`,
      from: 'status',
      to: 'status',
      actor: ':actor',
      data: `jsonb_build_object('run_at', nullif(run_at, timestamptz '${never}'))`,
    })}
  )
  select id from changed`);

async function applyConflict(
  tx: Queryable,
  schema: Schema,
  jobId: string,
  { unique, payload, runAt, author }: NewJob & { unique: Unique },
  actor: string,
): Promise<Enqueued> {
  let outcome: UniqueOutcome = 'skipped';
  if (unique.conflict !== 'skip') {
    const moves = unique.conflict === 'debounce';
    const values = {
      jobId,
      payload: writeJson(payload ?? {}),
      runAt: runAt ?? null,
      author: author ?? null,
      moves,
      actor,
      limits: limitsForSql(unique.limits),
    };
    const changed = await replaceStatement.query(tx, schema, values);
    if (changed.length > 0) outcome = moves ? 'debounced' : 'replaced';
  }
  return { kind: 'replayed', job: (await findJob(tx, schema, jobId)) as Job, unique: outcome };
}
