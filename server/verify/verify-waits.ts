// Waiting jobs must have something that wakes them, and an open question must have a job that its answer can reach.
// Reads only the tables, so the result is correct after any retention of events.
import { scan } from '../database/bounded-reads.ts';
import type { Queryable } from '../database/database.ts';
import type { Schema } from '../database/identifiers.ts';
import { isUnfinished } from '../jobs/flows/dependencies.ts';
import { statusIn, terminalStatuses } from '../jobs/model/states.ts';
import { never } from '../jobs/model/waiting.ts';
import type { Violations } from './violation.ts';

export async function verifyWaits(tx: Queryable, schema: Schema, violations: Violations): Promise<void> {
  await findForgotten(tx, schema, violations);
  await findUnwakeable(tx, schema, violations);
  await findUnanswerable(tx, schema, violations);
}

/** Jobs that wait for others, although all of them ended more than a minute ago: nothing would wake them. */
async function findForgotten(tx: Queryable, schema: Schema, violations: Violations): Promise<void> {
  const rows = scan<{ id: string; kind: string }>(
    tx,
    `select j.id, j.waiting ->> 'kind' as kind
       from ${schema}.jobs j
      where j.status = 'WAITING'
        and j.waiting ->> 'kind' in ('after', 'children')
        and j.run_at > now()
        and j.held_since < now() - interval '1 minute'
        and coalesce((j.waiting ->> 'not_before')::timestamptz <= now(), true)
        and not exists (
          select 1
            from ${schema}.dependencies d
            left join ${schema}.jobs o on o.id = d.after_id
           where d.job_id = j.id
             and d.step = coalesce(j.waiting ->> 'step', '')
             and (o.finished_at is null or o.finished_at > now() - interval '1 minute'
               or (o.status = 'ERROR' and d.on_failure = 'hold')))`,
  );
  for await (const batch of rows) {
    for (const { id, kind } of batch) {
      const detail = `is WAITING (${kind}), although everything that it waits for has ended`;
      violations.add({ kind: 'job_waiting', jobId: id, detail });
    }
  }
}

/**
 * Jobs that no time wakes and nothing else either: no open wait for an event, no open question, no unfinished child, no
 * turn to come. A run may have several waits at once, so any of them counts, whatever `waiting` names.
 */
async function findUnwakeable(tx: Queryable, schema: Schema, violations: Violations): Promise<void> {
  const rows = scan<{ id: string; kind: string }>(
    tx,
    `select j.id, j.waiting ->> 'kind' as kind
       from ${schema}.jobs j
      where j.status = 'WAITING'
        and coalesce(j.waiting ->> 'kind', '') not in ('after', 'children')
        and j.run_at >= timestamptz '${never}'
        and j.held_since < now() - interval '1 minute'
        and not exists (
          select 1
            from ${schema}.phases p
           where p.job_id = j.id
             and p.kind = 'event'
             and p.status in ('pending', 'running'))
        and not exists (select 1 from ${schema}.questions q where q.job_id = j.id and q.status = 'open')
        and not exists (select 1 from ${schema}.dependencies d where d.job_id = j.id and ${isUnfinished()})
        and not exists (
          select 1
            from ${schema}.dependencies d
           where d.after_id = j.id
             and d.state in ('gated', 'canceling'))`,
  );
  for await (const batch of rows) {
    for (const { id, kind } of batch) {
      const detail = `is WAITING (${kind}), but no time, event, answer or job wakes it`;
      violations.add({ kind: 'job_waiting', jobId: id, detail });
    }
  }
}

/** Open questions of jobs that have ended: a person is asked although no job waits for the answer. */
async function findUnanswerable(tx: Queryable, schema: Schema, violations: Violations): Promise<void> {
  const rows = scan<{ id: string; job_id: string; status: string }>(
    tx,
    `select q.id, q.job_id, j.status
       from ${schema}.questions q
       join ${schema}.jobs j on j.id = q.job_id
      where q.status = 'open'
        and ${statusIn(terminalStatuses, 'j.status')}`,
  );
  for await (const batch of rows) {
    for (const { id, job_id, status } of batch) {
      violations.add({
        kind: 'question_open',
        jobId: job_id,
        detail: `question ${id} is open, but its job is ${status}`,
      });
    }
  }
}
