// Two sweeps find the same question due for its reminder: the second finds it reminded, and leaves the job asleep.
import { expect, test } from 'vitest';
import type { Database, Queryable } from '../../../../server/database/database.ts';
import { queueDueJobs } from '../../../../server/jobs/finish/due-jobs.ts';
import type { Job } from '../../../../server/jobs/model/job.ts';
import { answerQuestion } from '../../../../server/jobs/questions/answer.ts';
import { expireQuestions } from '../../../../server/jobs/questions/due-questions.ts';
import { addJob, claim, finish, reread } from '../../../support/jobs.ts';
import { useTenant } from '../../../support/postgres/database.ts';
import { askQuestion, plainCall } from '../../../support/questions.ts';

const context = useTenant();

async function asking(reminders: number[]): Promise<Job> {
  const added = await addJob(context);
  const [job] = (await claim(context)).jobs;
  const state = await askQuestion(context, job as Job, { reminders });
  expect(state).toMatchObject({ status: 'open' });
  const { until, wakeMs } = state as { until: string; wakeMs: number };
  const waiting = { kind: 'question' as const, step: plainCall.name, until };
  await finish(context, job as Job, { kind: 'suspend', waiting, leftMs: wakeMs, awaited: { steps: [plainCall.name] } });
  return added;
}

/** As if so many seconds had passed. */
async function advance(job: Job, seconds: number): Promise<void> {
  const { db, schema } = context;
  const values = [job.id, seconds];
  await db.transaction(async (tx) => {
    await tx.query(
      `update ${schema}.questions
          set remind_at = array(select r - $2 * interval '1 second' from unnest(remind_at) as u(r))
        where job_id = $1`,
      values,
    );
    await tx.query(`update ${schema}.jobs set run_at = run_at - $2 * interval '1 second' where id = $1`, values);
  });
}

/** The database of a sweep that is slow: others act before its transaction, and after its lock of due jobs. */
function slowly(beforeTransaction: () => Promise<unknown>, afterLock: () => Promise<unknown>): Database {
  const { db } = context;
  const slowed = (tx: Queryable) =>
    ({
      async query(text: string, ...rest: []) {
        const rows = await tx.query(text, ...rest);
        if (/run_at <= now\(\)\s+order by j.id\s+for update/.test(text)) await afterLock();
        return rows;
      },
    }) as Queryable;
  return {
    query: db.query.bind(db),
    async transaction<T>(work: (tx: Queryable) => Promise<T>): Promise<T> {
      await beforeTransaction();
      return db.transaction((tx) => work(slowed(tx)));
    },
  } as unknown as Database;
}

test('a job that another sweep has reminded is not woken by the next reminder', async () => {
  const job = await asking([60, 120]);
  await advance(job, 61);
  let locks = 0;
  const sweep = slowly(
    () => queueDueJobs(context.db, context.schema, 'other'),
    () => {
      locks += 1;
      return advance(job, 60);
    },
  );
  await queueDueJobs(sweep, context.schema, 'slow');
  expect(locks).toBe(1);
  expect(await reread(context, job)).toMatchObject({ status: 'WAITING', attempt: 1 });
  await queueDueJobs(context.db, context.schema, 'other');
  const [question] = await context.db.query(`select reminders from ${context.schema}.questions where job_id = $1`, [
    job.id,
  ]);
  expect(question).toEqual({ reminders: 2 });
  expect(await reread(context, job)).toMatchObject({ status: 'WAITING', attempt: 1 });
});

test('the end of its time changes no question that was answered', async () => {
  const { db, schema } = context;
  await addJob(context);
  const [job] = (await claim(context)).jobs;
  const state = await askQuestion(context, job as Job, { on_timeout: { answer: { go: false } } });
  const { questionId: id } = state as { questionId: string };
  await answerQuestion(db, schema, { questionId: id, answer: {}, actor: 'user:ann' });
  await db.query(`update ${schema}.questions set expires_at = now() where id = $1`, [id]);
  expect(await expireQuestions(db, schema, [(job as Job).id], 'sweep')).toEqual([]);
  const [question] = await db.query(`select status, answer from ${schema}.questions where id = $1`, [id]);
  expect(question).toEqual({ status: 'answered', answer: {} });
});
