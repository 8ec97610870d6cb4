// What a job on hold waits for besides its resume: the open durable calls of its last run. A person may answer its
// question already, and an event is kept for it.
import type { Queryable } from '../database/database.ts';
import type { Schema } from '../database/identifiers.ts';
import { statement, tenant } from '../database/sql.ts';
import type { Job } from '../jobs/model/job.ts';
import { describeWaiting, type WaitKind } from '../jobs/model/waiting.ts';
import { answerAction, type Reason, sendAction } from './reason.ts';

interface OpenWait {
  step: string;
  kind: Extract<WaitKind, 'sleep' | 'event' | 'question' | 'children'>;
  until: string | null;
  event: string | null;
  match: Record<string, unknown> | null;
  question: string | null;
  title: string | null;
}

// Only parallel calls make more than one.
const maxWaits = 10;

const openStatement = statement(`
  select p.name as step, p.kind, p.waits_until as until, p.event_name as event, p.match, q.id as question, q.title
    from ${tenant}.phases p
    left join ${tenant}.questions q on q.job_id = p.job_id and q.step = p.name and q.status = 'open'
   where p.job_id = :jobId
     and p.kind in ('sleep', 'event', 'question', 'children')
     and p.status in ('pending', 'running')
     and (p.kind <> 'sleep' or p.waits_until > now())
     and (p.kind <> 'question' or q.id is not null)
   order by p.position, p.name
   limit :limit`);

export async function heldWaits(db: Queryable, schema: Schema, { id }: Pick<Job, 'id'>): Promise<Reason[]> {
  const waits = await openStatement.query<OpenWait>(db, schema, { jobId: id, limit: maxWaits });
  return waits.map(toReason);
}

function toReason({ step, kind, until, event, match, question, title }: OpenWait): Reason {
  switch (kind) {
    case 'question':
      return {
        code: 'WAITING',
        detail: `After its resume the job waits for a person to answer "${title}", asked in "${step}". The time limit for the answer stands still until then.`,
        release: {
          detail: 'A person answers the question. An answer before the resume counts too.',
          at: null,
          actions: question === null ? [] : [answerAction(question)],
        },
      };
    case 'children':
      return {
        code: 'WAITING',
        detail: `After its resume the job waits in "${step}" for its children.`,
        release: { detail: 'The children end. They may end before the resume.', at: null, actions: [] },
      };
    default: {
      const wait = { kind, step, ...(until && { until }), ...(event && { event }), ...(match && { match }) };
      return {
        code: 'WAITING',
        detail: `After its resume the job ${describeWaiting(wait)}.`,
        release: {
          detail:
            kind === 'sleep'
              ? `The sleep ends at ${until}.`
              : `The event "${event}" comes. It may come before the resume.`,
          at: until,
          actions: event === null ? [] : [sendAction(event)],
        },
      };
    }
  }
}
