import { describe, expect, it } from 'vitest';
import { useControl } from '../../../../support/http/control.ts';
import { addJob, claim, eventTypes, finish, reread } from '../../../../support/jobs.ts';

const control = useControl();
let number = 0;
const newTarget = () => `target-${++number}`;
const fail = { kind: 'fail', error: { code: 'HANDLER_ERROR', message: 'no' } } as const;

async function runningJob(targetId = newTarget()) {
  await addJob(control, { targetId, payload: { targetId } });
  const { jobs } = await claim(control);
  const job = jobs.find((j) => j.targetId === targetId);
  if (job === undefined) throw new Error('the job was not claimed');
  return job;
}

async function failedJob(targetId = newTarget()) {
  const job = await runningJob(targetId);
  await finish(control, job, fail);
  return job;
}

const lastData = async (id: string) =>
  (
    await control.db.query<{ type: string; actor: string; data: unknown }>(
      `select type, actor, data from ${control.schema}.events where job_id = $1 order by seq desc limit 1`,
      [id],
    )
  )[0];

describe('a running job', () => {
  it.each([
    ['pause', 'pause'],
    ['interrupt', 'pause'],
    ['cancel', 'cancel'],
  ])('answers %s with 202 and stores the request on the job, once', async (verb, intent) => {
    const job = await runningJob();
    const body = { reason: 'too hot', author: 'ann' };
    const asked = await control.post(`/api/targets/${job.targetId}/jobs/${job.id}/${verb}/`, body);
    expect(asked.status).toBe(202);
    expect(asked.body).toMatchObject({
      status: 'RUNNING',
      cancel_requested: true,
      cancel_intent: intent,
      cancel_detail: body,
      lease_owner: 'w1',
    });
    expect(asked.body.lease_expires_at).toMatch(/Z$/);
    expect((await control.post(`/api/jobs/${job.id}/${verb}`, body)).status).toBe(202);
    expect((await eventTypes(control, job)).filter((t) => t === `job.${intent}_requested`)).toHaveLength(1);
    expect(await lastData(job.id)).toMatchObject({ actor: expect.stringMatching(/^key:/), data: body });
  });

  it('can be canceled after a pause request, but not paused after a cancel request', async () => {
    const job = await runningJob();
    await control.post(`/api/jobs/${job.id}/pause`, { author: 'ann' });
    expect((await control.post(`/api/jobs/${job.id}/cancel`, { author: 'bob' })).status).toBe(202);
    const late = await control.post(`/api/jobs/${job.id}/pause`, { author: 'ann' });
    expect(late.status).toBe(409);
    expect(late.body).toMatchObject({
      code: 'CONFLICT',
      job_status: 'RUNNING',
      last_event: { type: 'job.cancel_requested', author: 'bob' },
    });
    expect(late.body.detail).toContain('bob');
  });

  it.each(['resume', 'resolve', 'skip'])('refuses %s', async (verb) => {
    const job = await runningJob();
    const answer = await control.post(`/api/jobs/${job.id}/${verb}`);
    expect(answer.status).toBe(409);
    expect(answer.body).toMatchObject({
      code: 'INVALID_TRANSITION',
      job_status: 'RUNNING',
      last_event: { type: 'job.started', actor: 'worker:w1' },
    });
  });
});

describe('a waiting job', () => {
  it('is paused and resumed at once, any number of times', async () => {
    const job = await addJob(control, { targetId: newTarget() });
    for (let i = 0; i < 2; i++) {
      const paused = await control.post(`/api/jobs/${job.id}/pause`, { reason: 'wait' });
      expect(paused.status).toBe(200);
      expect(paused.body).toMatchObject({ status: 'PAUSED', error: { message: 'Job was interrupted by user' } });
      expect(paused.body.held_since).not.toBeNull();
    }
    for (let i = 0; i < 2; i++) {
      const resumed = await control.post(`/api/jobs/${job.id}/resume`);
      expect(resumed.status).toBe(200);
      expect(resumed.body).toMatchObject({ status: 'QUEUED', held_since: null, error: null });
    }
    expect(await eventTypes(control, job)).toEqual(['job.enqueued', 'job.paused', 'job.resumed']);
  });

  it('is canceled at once; a canceled job stays canceled', async () => {
    const job = await addJob(control, {});
    for (let i = 0; i < 2; i++) {
      const canceled = await control.post(`/api/jobs/${job.id}/cancel`);
      expect(canceled.status).toBe(200);
      expect(canceled.body.status).toBe('CANCELED');
    }
    for (const verb of ['pause', 'resume', 'resolve']) {
      const answer = await control.post(`/api/jobs/${job.id}/${verb}`);
      expect(answer.status).toBe(409);
      expect(answer.body.job_status).toBe('CANCELED');
    }
    expect((await claim(control)).jobs.map((j) => j.id)).not.toContain(job.id);
  });
});

describe('a held lane', () => {
  it('continues after resume, with a new token limit', async () => {
    const job = await failedJob();
    const resumed = await control.post(`/api/jobs/${job.id}/resume`, { token_limit: 5000, author: 'ann' });
    expect(resumed.status).toBe(200);
    expect(resumed.body).toMatchObject({ status: 'QUEUED', usage: { tokens: 0, token_limit: 5000 } });
    expect((await claim(control)).jobs.map((j) => j.id)).toContain(job.id);
  });

  it('continues after resolve, with the supplied result', async () => {
    const job = await failedJob();
    const next = await addJob(control, { targetId: job.targetId as string });
    const body = { result: { done: 'by hand' }, author: 'ann', reason: 'fixed it' };
    for (let i = 0; i < 2; i++) {
      const resolved = await control.post(`/api/jobs/${job.id}/resolve`, body);
      expect(resolved.status).toBe(200);
      expect(resolved.body).toMatchObject({ status: 'SUCCESS', result: { done: 'by hand' }, error: null });
    }
    expect((await control.post(`/api/jobs/${job.id}/resolve`, { result: 'other' })).status).toBe(409);
    expect((await claim(control)).jobs.map((j) => j.id)).toContain(next.id);
  });

  it('continues after skip', async () => {
    const job = await failedJob();
    const next = await addJob(control, { targetId: job.targetId as string });
    expect((await control.post(`/api/jobs/${next.id}/skip`)).status).toBe(409);
    expect((await control.post(`/api/jobs/${job.id}/skip`)).body.status).toBe('CANCELED');
    expect((await claim(control)).jobs.map((j) => j.id)).toContain(next.id);
  });

  it('resolved and canceled at once: one action wins, and the refusal of the other names it', async () => {
    for (let i = 0; i < 5; i++) {
      const job = await failedJob();
      const [resolved, canceled] = await Promise.all([
        control.post(`/api/jobs/${job.id}/resolve`, { author: 'ann', result: 1 }),
        control.post(`/api/jobs/${job.id}/cancel`, { author: 'bob' }),
      ]);
      expect([resolved.status, canceled.status].sort()).toEqual([200, 409]);
      const won = resolved.status === 200;
      const lost = won ? canceled : resolved;
      expect(lost.body).toMatchObject({
        code: 'INVALID_TRANSITION',
        job_status: won ? 'SUCCESS' : 'CANCELED',
        last_event: { author: won ? 'ann' : 'bob' },
      });
      expect(await reread(control, job)).toMatchObject({ status: won ? 'SUCCESS' : 'CANCELED' });
    }
  });

  it('resumed by two at once is resumed once', async () => {
    const job = await failedJob();
    const answers = await Promise.all([1, 2, 3].map(() => control.post(`/api/jobs/${job.id}/resume`)));
    expect(answers.map((a) => a.status)).toEqual([200, 200, 200]);
    expect((await eventTypes(control, job)).filter((t) => t === 'job.resumed')).toHaveLength(1);
  });
});

describe('every action', () => {
  const verbs = ['pause', 'interrupt', 'cancel', 'resume', 'resolve', 'skip'];

  it.each(verbs)('%s answers 404 for ids that are unknown, malformed or of another target', async (verb) => {
    const job = await addJob(control, { targetId: newTarget() });
    for (const path of [
      '/api/jobs/x',
      '/api/jobs/00000000-0000-7000-8000-000000000000',
      `/api/targets/no/jobs/${job.id}`,
    ]) {
      const answer = await control.post(`${path}/${verb}`);
      expect(answer.status).toBe(404);
      expect(answer.body).toMatchObject({ code: 'NOT_FOUND', detail: 'There is no such job.' });
    }
  });

  it.each(verbs)('%s needs the scope control and names unknown fields', async (verb) => {
    const job = await addJob(control, {});
    const key = await control.app.keyFor(control.tenant.id, ['read', 'enqueue']);
    expect((await control.app.request('POST', `/api/jobs/${job.id}/${verb}`, { key })).status).toBe(403);
    const answer = await control.post(`/api/jobs/${job.id}/${verb}`, { raeson: 'x' });
    expect(answer.body).toMatchObject({ code: 'INVALID_FIELD', field: 'raeson' });
  });
});
