// Compares the durable calls of all jobs, their questions and their events with the model.
import { expect } from 'vitest';
import type { TenantContext } from '../postgres/database.ts';
import type { ModelCall } from './durable-model.ts';
import type { EngineModel } from './engine-model.ts';

interface CallRow {
  job: string;
  name: string;
  kind: ModelCall['kind'];
  status: ModelCall['status'];
  result: unknown;
  question: ModelCall['question'] | null;
  log: string[];
}

const query = (schema: string) => `
  select p.job_id as job, p.name, p.kind,
         case when p.status in ('pending', 'running') then 'open' else p.status end as status,
         case p.kind when 'event' then p.result -> 'id' else p.result end as result,
         (select jsonb_build_object('status', q.status, 'answer', q.answer, 'by', q.answered_by)
            from ${schema}.questions q where q.job_id = p.job_id and q.step = p.name) as question,
         array(select e.type from ${schema}.events e
                where e.job_id = p.job_id
                  and p.name in (e.data ->> 'step', e.data -> 'question' ->> 'step')
                  and e.from_status = e.to_status
                order by e.type) as log
    from ${schema}.phases p
   order by p.job_id, p.position`;

export async function compareCalls({ db, schema }: TenantContext, model: EngineModel): Promise<void> {
  const rows = await db.query<CallRow>(query(schema));
  const jobs = [...model.jobs].sort((a, b) => (a.id < b.id ? -1 : 1));
  const expected = jobs.flatMap(({ id, calls }) =>
    calls.map(({ name, kind, status, result, question = null, log }) => {
      return { job: id, name, kind, status, result, question, log: [...log].sort() };
    }),
  );
  expect(rows).toEqual(expected);
}
