// A hold says who made it, why, and of what kind it is: on the job, in `why`, in lists and in bulk operations.
import { expect, test } from 'vitest';
import { runOperationsOnce } from '../../../../../server/jobs/actions/run-bulk-operations.ts';
import { useControl } from '../../../../support/http/control.ts';
import { addJob, claim, finish, reread } from '../../../../support/jobs.ts';

const control = useControl();
let number = 0;

async function runningJob() {
  const added = await addJob(control, { targetId: `held-${++number}` });
  const job = (await claim(control)).jobs.find((one) => one.id === added.id);
  if (job === undefined) throw new Error('the job was not claimed');
  return job;
}

const drained = {
  kind: 'stopPaused',
  message: 'm',
  by: { kind: 'drain', reason: 'drained', author: 'worker:w1' },
} as const;

test('the job, why and the event have the author and reason of a pause, whether the job ran or waited', async () => {
  const by = { author: 'ann', reason: 'the machine is hot' };
  const running = await runningJob();
  await control.post(`/api/jobs/${running.id}/pause`, by);
  const { cancelDetail } = await reread(control, running);
  await finish(control, running, { kind: 'stopPaused', message: 'm', by: cancelDetail ?? undefined });
  const waiting = await addJob(control, { targetId: 'waiting' });
  await control.post(`/api/jobs/${waiting.id}/pause`, by);
  for (const job of [running, waiting]) {
    const { body } = await control.get(`/api/jobs/${job.id}`);
    const hold = { kind: 'user', ...by, since: body.held_since, handler: null };
    expect(body.hold).toEqual(hold);
    const why = await control.get(`/api/jobs/${job.id}/why`);
    expect(why.body.reasons[0]).toMatchObject({
      code: 'HELD',
      hold,
      detail: expect.stringContaining('paused by ann: the machine is hot'),
    });
    const [event] = await control.db.query<{ data: object }>(
      `select data from ${control.schema}.events where job_id = $1 and type = 'job.paused'`,
      [job.id],
    );
    expect(event?.data).toMatchObject({ kind: 'user', ...by });
  }
  const behind = await addJob(control, { targetId: running.targetId as string });
  const why = await control.get(`/api/jobs/${behind.id}/why`);
  expect(why.body.reasons[0]).toMatchObject({ code: 'TARGET_HELD', hold: { kind: 'user', author: 'ann' } });
  const target = await control.get(`/api/targets/${running.targetId}`);
  expect(target.body.hold).toMatchObject({ by: 'job', kind: 'user', ...by });
});

test('without an author the hold names the key; a resume ends the hold', async () => {
  const job = await addJob(control, { targetId: 'unnamed' });
  await control.post(`/api/jobs/${job.id}/pause`, {});
  const held = await control.get(`/api/jobs/${job.id}`);
  expect(held.body.hold).toMatchObject({ kind: 'user', reason: null, author: expect.stringMatching(/^key:/) });
  expect((await control.post(`/api/jobs/${job.id}/resume`, {})).body.hold).toBeNull();
  expect((await reread(control, job)).hold).toBeNull();
});

test.each([
  ['error', { kind: 'fail', error: { code: 'BROKEN', message: 'it broke' } }, 'it broke'],
  ['budget', { kind: 'fail', error: { code: 'TOKEN_LIMIT', message: 'too many' } }, 'too many'],
  ['drain', drained, 'drained'],
] as const)('a hold of kind %s is named and found by its kind', async (kind, outcome, reason) => {
  const job = await runningJob();
  await finish(control, job, outcome);
  const { body } = await control.get(`/api/jobs/${job.id}`);
  expect(body.hold).toMatchObject({ kind, reason });
  const ids = async (query: string) =>
    (await control.get(`/api/targets/${job.targetId}/jobs?${query}`)).body.jobs.map((one: { id: string }) => one.id);
  expect(await ids(`hold_kind=${kind}`)).toEqual([job.id]);
  expect(await ids('hold_kind=user')).toEqual([]);
  const all = await control.get(`/api/jobs?hold_kind=${kind}`);
  expect(all.body.jobs).toContainEqual(expect.objectContaining({ id: job.id, hold: body.hold }));
  expect((await control.get('/api/jobs?hold_kind=nonsense')).status).toBe(400);
});

test('one call resumes the jobs that a deploy paused, and no others', async () => {
  const [paused, failed, byUser] = [await runningJob(), await runningJob(), await runningJob()];
  await finish(control, paused, drained);
  await finish(control, failed, { kind: 'fail', error: { code: 'BROKEN', message: 'x' } });
  await finish(control, byUser, { kind: 'stopPaused', message: 'm' });
  const filter = { hold_kind: 'drain' };
  const begun = await control.post('/api/operations', { action: 'resume', filter });
  expect(begun.body).toMatchObject({ filter });
  while ((await runOperationsOnce(control.db, control.tenant)).more);
  expect((await reread(control, paused)).status).toBe('QUEUED');
  expect((await reread(control, failed)).status).toBe('ERROR');
  expect((await reread(control, byUser)).status).toBe('PAUSED');
});
