// What waits must be woken by something, and an open question needs a job: `verify` names what was forged by SQL, and
// nothing before that.
import { expect, test } from 'vitest';
import { openEventWait } from '../../../server/jobs/attempt/event-waits.ts';
import { openChildren } from '../../../server/jobs/flows/fenced-children.ts';
import type { Job } from '../../../server/jobs/model/job.ts';
import { never, type Waiting, type WaitKind } from '../../../server/jobs/model/waiting.ts';
import { openQuestion } from '../../../server/jobs/questions/ask.ts';
import { verifyTenant } from '../../../server/verify/verify-tenant.ts';
import { addJob, claim, finish } from '../../support/jobs.ts';
import { useTenantPerTest } from '../../support/postgres/database.ts';
import { plainQuestion } from '../../support/questions.ts';

const context = useTenantPerTest();
const call = { name: 'wait#1', position: 0, parallel: false };

const violations = async () => (await verifyTenant(context.db, context.schema)).violations;
const heldBy = (job: Job) => ({ jobId: job.id, leaseId: job.leaseId as string });

function forge(change: string, job: Pick<Job, 'id'>): Promise<unknown> {
  return context.db.query(change.replaceAll('{schema}', context.schema), [job.id]);
}

async function running(): Promise<Job> {
  const type = crypto.randomUUID();
  await addJob(context, { type });
  return (await claim(context, { types: [type] })).jobs[0] as Job;
}

/** Waits since an hour ago; by hand, so that no time wakes it. */
async function suspend(job: Job, waiting: Waiting): Promise<void> {
  await finish(context, job, { kind: 'suspend', waiting, leftMs: 1e9, awaited: { steps: [call.name] } });
  await forge(
    `update {schema}.jobs set held_since = now() - interval '1 hour', run_at = '${never}' where id = $1`,
    job,
  );
}

interface Case {
  /** Returns the job that waits. */
  wait(): Promise<Job>;
  /** Takes away what would wake it. */
  forgery: string;
}

const cases: Partial<Record<WaitKind, Case>> = {
  event: {
    async wait() {
      const job = await running();
      const wanted = { event: 'paid', match: null, ms: null };
      await openEventWait(context.db, context.schema, heldBy(job), call, wanted, 'worker:w1');
      await suspend(job, { kind: 'event', step: call.name, event: 'paid' });
      return job;
    },
    forgery: `update {schema}.phases set status = 'completed' where job_id = $1`,
  },
  question: {
    async wait() {
      const job = await running();
      await openQuestion(context.db, context.schema, heldBy(job), call, plainQuestion, 'worker:w1');
      await suspend(job, { kind: 'question', step: call.name });
      return job;
    },
    forgery: `update {schema}.questions set status = 'canceled', closed_at = now() where job_id = $1`,
  },
  turn: {
    async wait() {
      const parent = await running();
      const waiting = { kind: 'turn', step: call.name } as const;
      const first = await addJob(context, { parentId: parent.id });
      const second = await addJob(context, { parentId: parent.id, waiting });
      const children = [first.id, second.id];
      const options = { onFailure: 'continue', concurrency: 1 } as const;
      await openChildren(context.db, context.schema, heldBy(parent), call, children, options);
      await forge(`update {schema}.jobs set held_since = now() - interval '1 hour' where id = $1`, second);
      return second;
    },
    forgery: `update {schema}.dependencies set state = 'open' where after_id = $1`,
  },
};

test.each(Object.entries(cases))(
  'verify names a job that waits (%s) and that nothing wakes',
  async (kind, { wait, forgery }) => {
    const job = await wait();
    expect(await violations()).toEqual([]);
    await forge(forgery, job);
    const detail = `is WAITING (${kind}), but no time, event, answer or job wakes it`;
    expect(await violations()).toEqual([{ kind: 'job_waiting', jobId: job.id, detail }]);
    await forge(`update {schema}.jobs set run_at = now() + interval '1 hour' where id = $1`, job);
    expect(await violations()).toEqual([]);
  },
);

test('verify names an open question whose job has ended', async () => {
  const job = await running();
  await openQuestion(context.db, context.schema, heldBy(job), call, plainQuestion, 'worker:w1');
  await finish(context, job);
  expect(await violations()).toEqual([]);
  const rows = (await forge(
    `update {schema}.questions set status = 'open', closed_at = null where job_id = $1 returning id`,
    job,
  )) as { id: string }[];
  const detail = `question ${rows[0]?.id} is open, but its job is SUCCESS`;
  expect(await violations()).toEqual([{ kind: 'question_open', jobId: job.id, detail }]);
});
