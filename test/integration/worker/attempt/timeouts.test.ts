// How long an attempt may take: the job's limit, else its type's, else its tenant's, else the daemon's; 0 for none.
// And what a person reads of an attempt that ended: its progress, and how many attempts count.
import { expect, test } from 'vitest';
import { resumeJob } from '../../../../server/jobs/actions/resume.ts';
import { toNewJob } from '../../../../server/jobs/enqueue/job-request.ts';
import { timeoutOf } from '../../../../server/jobs/model/job.ts';
import { defineJob } from '../../../../server/worker/handlers/define-job.ts';
import { HandlerRegistry } from '../../../../server/worker/handlers/handler-registry.ts';
import { startDaemon } from '../../../support/daemon/daemon.ts';
import { eventually } from '../../../support/eventually.ts';
import { addJob, claim, finish, reread } from '../../../support/jobs.ts';
import { useTenant } from '../../../support/postgres/database.ts';

const context = useTenant();
const sleeper = { type: 'demo.sleep', payload: { seconds: 600 } };

test.each([
  ['the job', 1, 2, 3, 1],
  ['the tenant', null, 2, 3, 2],
  ['the daemon', null, undefined, 3, 3],
  ['no one, if the job says 0', 0, 2, 3, 0],
  ['no one, if the tenant says 0', null, 0, 3, 0],
])('%s decides', (_, job, tenant, daemon, expected) => {
  const settings = tenant === undefined ? {} : { timeout_seconds: tenant };
  expect(timeoutOf({ timeoutSeconds: job }, { settings }, daemon)).toBe(expected);
});

test('a type has its own limit, which may be none, and a request may override it', async () => {
  const endless = defineJob({ type: 'endless', timeoutSeconds: 0, run: () => null });
  const request = { tenant: context.tenant, jobTypes: new HandlerRegistry([endless]), liveDaemons: async () => [] };
  expect((await toNewJob({ type: 'endless' }, request)).timeoutSeconds).toBe(0);
  expect((await toNewJob({ type: 'endless', timeout_seconds: 7 }, request)).timeoutSeconds).toBe(7);
  expect(() => defineJob({ type: 'x', timeoutSeconds: -1, run: () => null })).toThrow('0 or more');
});

test("a hung handler fails at the daemon's limit; a limit of 0 lets it run", async () => {
  const daemon = await startDaemon(context, { env: { JOB_TIMEOUT_SECONDS: '0.3' } });
  const [hung, endless] = await daemon.enqueue(context.tenant, [sleeper, { ...sleeper, timeoutSeconds: 0 }], 'test');
  await eventually(async () => {
    expect(await reread(context, hung!.job)).toMatchObject({
      status: 'ERROR',
      error: { code: 'TIMEOUT', message: expect.stringContaining('0.3 s') },
    });
  });
  expect((await reread(context, endless!.job)).status).toBe('RUNNING');
});

test('a new attempt begins without the progress of the last one, and a failed one never shows 100', async () => {
  const added = await addJob(context, { type: 'reports', targetId: 'reports' });
  const run = async (progress: number) => {
    const job = (await claim(context)).jobs.find((one) => one.id === added.id);
    if (job === undefined) throw new Error('the job was not claimed');
    expect(await reread(context, job)).toMatchObject({ progress: null, progressMessage: null });
    await context.db.query(`update ${context.schema}.jobs set progress = $2, progress_message = 'm' where id = $1`, [
      job.id,
      progress,
    ]);
    await finish(context, job, { kind: 'fail', error: { code: 'BROKEN', message: 'x' } });
    return reread(context, job);
  };
  expect(await run(100)).toMatchObject({ status: 'ERROR', progress: 99, attempt: 1, attemptFloor: 0 });
  await resumeJob(context.db, context.schema, { jobId: added.id, actor: 'user:ann' });
  expect(await run(40)).toMatchObject({ status: 'ERROR', progress: 40, attempt: 2, attemptFloor: 1 });
});

test('concurrent attempts each have their own limit, in any order of their starts', async () => {
  const daemon = await startDaemon(context, { env: { JOB_TIMEOUT_SECONDS: '600' } });
  const limits = [undefined, 1.2, 0.2, 0.7];
  const jobs = limits.map((timeoutSeconds) => ({ ...sleeper, timeoutSeconds }));
  const [last, third, first, second] = (await daemon.enqueue(context.tenant, jobs, 'test')).map(({ job }) => job);
  await eventually(async () => expect((await reread(context, third!)).status).toBe('ERROR'));
  const ended = [];
  for (const job of [first!, second!, third!]) {
    const read = await reread(context, job);
    expect(read).toMatchObject({ status: 'ERROR', error: { code: 'TIMEOUT' } });
    ended.push(read.finishedAt as string);
  }
  expect(ended).toEqual([...ended].sort());
  expect((await reread(context, last!)).status).toBe('RUNNING');
});
