// Two waits at once, of which the first to end decides: every pair, either way. The job wakes although the other wait is
// open, and what comes for that one later changes nothing.
import { expect, test } from 'vitest';
import { queueDueJobs } from '../../../server/jobs/finish/due-jobs.ts';
import { answerQuestion } from '../../../server/jobs/questions/answer.ts';
import { receiveEvent } from '../../../server/jobs/received/receive-event.ts';
import { defineJob } from '../../../server/worker/handlers/define-job.ts';
import type { JobContext } from '../../../server/worker/handlers/job-context.ts';
import { useDaemon } from '../../support/daemon/daemon.ts';
import { eventually } from '../../support/eventually.ts';
import { addJob, reread } from '../../support/jobs.ts';
import { checkInvariants } from '../../support/model/invariants.ts';
import { useTenant } from '../../support/postgres/database.ts';

const context = useTenant();
// Children run when the test makes them due.
const later = '2199-01-01T00:00:00.000Z';

const waits = {
  sleep: ({ sleepFor }) => sleepFor('3d', { name: 'sleep' }),
  event: ({ waitForEvent, job }) => waitForEvent('go', { match: { job: job.id }, name: 'event' }),
  'event with a time limit': ({ waitForEvent }) => waitForEvent('none', { timeoutSeconds: 86_400, name: 'limited' }),
  children: ({ fanOut }) => fanOut('children', [1, 2], () => ({ type: 'child', runAt: later })),
  question: ({ ask }) => ask({ title: 'Go?', actions: ['Yes'], name: 'question' }),
} satisfies Record<string, (given: JobContext) => Promise<unknown>>;
type Wait = keyof typeof waits;

const race = defineJob({
  type: 'race',
  run: (given: JobContext) =>
    Promise.race((given.payload as { pair: Wait[] }).pair.map((wait) => waits[wait](given).then(() => wait))),
});
const child = defineJob({ type: 'child', run: () => 'done' });
const running = useDaemon(context, { handlers: [race, child] });

async function change(sql: string, jobId: string): Promise<void> {
  await context.db.query(sql.replaceAll('tenant.', `${context.schema}.`), [jobId]);
}

async function wakeDue(): Promise<void> {
  await queueDueJobs(context.db, context.schema, 'test');
  running.daemon.signals.workAvailable(context.tenant);
}

/** As if the time of this wait were over. */
async function endTime(jobId: string, step: string): Promise<void> {
  await change(`update tenant.phases set waits_until = now() where job_id = $1 and name = '${step}'`, jobId);
  await change(`update tenant.jobs set run_at = now() where id = $1 and status = 'WAITING'`, jobId);
  await wakeDue();
}

const end: Record<Wait, (jobId: string) => Promise<unknown>> = {
  sleep: (jobId) => endTime(jobId, 'sleep'),
  'event with a time limit': (jobId) => endTime(jobId, 'limited'),
  async event(jobId) {
    await receiveEvent(context.db, context.schema, { name: 'go', data: { job: jobId } }, 'test');
    running.daemon.onEventReceived(context.tenant);
  },
  async children(jobId) {
    await change(`update tenant.jobs set run_at = now() where parent_id = $1 and status = 'PENDING'`, jobId);
    await wakeDue();
  },
  async question(jobId) {
    const [question] = await context.db.query<{ id: string }>(
      `select id from ${context.schema}.questions where job_id = $1`,
      [jobId],
    );
    await answerQuestion(context.db, context.schema, { questionId: question!.id, action: 'Yes', actor: 'user:ann' });
    running.daemon.signals.workAvailable(context.tenant);
  },
};

const all = Object.keys(waits) as Wait[];
const pairs = all.flatMap((first) => all.filter((other) => other !== first).map((other) => [first, other] as const));

test.each(pairs)('%s ends before %s', async (first, other) => {
  const pair = all.filter((wait) => wait === first || wait === other);
  const job = await addJob(context, { type: 'race', payload: { pair } });
  running.daemon.signals.workAvailable(context.tenant);
  await eventually(async () => expect((await reread(context, job)).status).toBe('WAITING'));
  await end[first](job.id);
  await eventually(async () => {
    const { status, result, error } = await reread(context, job);
    expect({ status, result, error }).toEqual({ status: 'SUCCESS', result: first, error: null });
  });
  if (other === 'question') await expect(end.question(job.id)).rejects.toMatchObject({ code: 'QUESTION_CLOSED' });
  else await end[other](job.id);
  expect(await reread(context, job)).toMatchObject({ status: 'SUCCESS', result: first });
  await checkInvariants(context);
});
