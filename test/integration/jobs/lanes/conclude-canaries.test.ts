import { describe, expect, it } from 'vitest';
import { cancelJob, pauseJob } from '../../../../server/jobs/actions/pause-and-cancel.ts';
import { resumeJob } from '../../../../server/jobs/actions/resume.ts';
import { runOperationsOnce } from '../../../../server/jobs/actions/run-bulk-operations.ts';
import { startCanary } from '../../../../server/jobs/actions/start-canary.ts';
import { queueDueJobs } from '../../../../server/jobs/finish/due-jobs.ts';
import { findExpiredLeases, recoverLease } from '../../../../server/jobs/finish/recover.ts';
import { concludeOverdueCanaries } from '../../../../server/jobs/lanes/conclude-canaries.ts';
import { mustFindTarget, pauseTarget, resumeTarget } from '../../../../server/jobs/lanes/target.ts';
import type { Job } from '../../../../server/jobs/model/job.ts';
import { firstUuid } from '../../../../server/kernel/limits.ts';
import { verifyTenant } from '../../../../server/verify/verify-tenant.ts';
import { useControl } from '../../../support/http/control.ts';
import { addJob, addJobs, claim, eventTypes, expireLease, finish, reread } from '../../../support/jobs.ts';
import { checkInvariants } from '../../../support/model/invariants.ts';

const control = useControl();
const failing = { kind: 'fail', error: { code: 'X', message: 'x' } } as const;
const actor = 'user:ann';
const statusOf = async (job: { id: string }) => (await reread(control, job)).status;
const targetOf = (targetId: string) => mustFindTarget(control.db, control.schema, targetId);
const canary = (targetId: string, body: object = {}) => control.post(`/api/targets/${targetId}/canary`, body);
const targetEvents = async (targetId: string) =>
  (
    await control.db.query<{ type: string }>(
      `select type from ${control.schema}.events where target_id = $1 and job_id is null order by seq`,
      [targetId],
    )
  ).map((row) => row.type);

/** A lane of three whose first job has failed and holds it. */
async function heldLane(targetId: string, given: object = {}): Promise<[Job, Job, Job]> {
  const jobs = await addJobs(control, [
    { targetId, ...given },
    { targetId, ...given },
    { targetId, ...given },
  ]);
  await finish(control, await claimOf(targetId), failing);
  return jobs as [Job, Job, Job];
}

/** Claims all there is and returns the job of the target; there is at most one. */
async function claimOf(targetId: string): Promise<Job> {
  const job = await tryClaimOf(targetId);
  if (job === undefined) throw new Error(`no job of ${targetId} can be claimed`);
  return job;
}

async function tryClaimOf(targetId: string): Promise<Job | undefined> {
  const { jobs } = await claim(control);
  return jobs.find((job) => job.targetId === targetId);
}

describe('a canary of a held target', () => {
  it('runs the job that holds the lane, alone; its success releases the lane', async () => {
    const [first, second] = await heldLane('a1');
    const started = await canary('a1', { author: 'ann', reason: 'is it fixed?' });
    expect(started.status).toBe(200);
    expect(started.body).toMatchObject({ canary_job_id: first.id, hold: null, head: { id: first.id } });
    expect((await canary('a1')).body.canary_job_id).toBe(first.id);
    const why = await control.get(`/api/jobs/${second.id}/why`);
    expect(why.body.reasons[0]).toMatchObject({ code: 'CANARY', job_id: first.id });
    expect(
      (await control.get(`/api/jobs/${first.id}/why`)).body.reasons.map((r: { code: string }) => r.code),
    ).not.toContain('CANARY');
    const running = await claimOf('a1');
    expect(running.id).toBe(first.id);
    expect(await tryClaimOf('a1')).toBeUndefined();
    await finish(control, running);
    expect(await targetOf('a1')).toMatchObject({ pausedAt: null, canaryJobId: null });
    expect(await targetEvents('a1')).toEqual(['target.canary_started', 'target.resumed']);
    expect((await claimOf('a1')).id).toBe(second.id);
  });

  it('holds the lane again, by the job alone, if it fails', async () => {
    const [first] = await heldLane('a2');
    await canary('a2');
    await finish(control, await claimOf('a2'), failing);
    expect(await statusOf(first)).toBe('ERROR');
    expect(await targetOf('a2')).toMatchObject({ pausedAt: null, canaryJobId: null });
    expect(await tryClaimOf('a2')).toBeUndefined();
    expect(await targetEvents('a2')).toEqual(['target.canary_started', 'target.canary_failed']);
    expect((await control.get('/api/targets/a2')).body.hold).toMatchObject({ by: 'job', job_id: first.id });
  });

  it('leaves the target paused if the job leaves its lane without success', async () => {
    const [first, second] = await heldLane('a3');
    await canary('a3', { author: 'ann' });
    await cancelJob(control.db, control.schema, { jobId: first.id, actor });
    expect(await targetOf('a3')).toMatchObject({
      canaryJobId: null,
      pausedBy: 'ann',
      pauseReason: `Canary job ${first.id} ended as CANCELED`,
    });
    expect(await tryClaimOf('a3')).toBeUndefined();
    await resumeTarget(control.db, control.schema, { targetId: 'a3', actor });
    expect((await claimOf('a3')).id).toBe(second.id);
  });

  it('leaves the target paused if it is canceled while it runs, and with on_error continue', async () => {
    await heldLane('a4');
    await canary('a4');
    const running = await claimOf('a4');
    await cancelJob(control.db, control.schema, { jobId: running.id, actor });
    await finish(control, running, { kind: 'stopCanceled', message: 'canceled' });
    expect(await targetOf('a4')).toMatchObject({ canaryJobId: null, pausedAt: expect.any(String) });

    await addJobs(control, [{ targetId: 'a5', onError: 'continue' }, { targetId: 'a5' }]);
    await pauseTarget(control.db, control.schema, { targetId: 'a5', actor });
    await canary('a5');
    await finish(control, await claimOf('a5'), failing);
    expect(await targetOf('a5')).toMatchObject({ canaryJobId: null, pausedBy: actor });
    expect(await tryClaimOf('a5')).toBeUndefined();
  });

  it('survives a retry, a lost lease and a requeue: it is still the canary', async () => {
    const [first] = await heldLane('a6', { maxAttempts: 3 });
    await canary('a6');
    const running = await claimOf('a6');
    await expireLease(control, running.leaseId as string);
    for (const lease of await findExpiredLeases(control.db, control.schema, 0, firstUuid, 100)) {
      await recoverLease(control.db, control.schema, lease, { actor, graceSeconds: 0, tokenLimit: 0 });
    }
    await control.db.query(`update ${control.schema}.jobs set run_at = now() where id = $1 and status = 'PENDING'`, [
      first.id,
    ]);
    expect(await targetOf('a6')).toMatchObject({ canaryJobId: first.id });
    await queueDueJobs(control.db, control.schema, actor);
    const due = await claimOf('a6');
    expect(due.id).toBe(first.id);
    await finish(control, due, { kind: 'requeue', reason: 'drain' });
    const again = await claimOf('a6');
    expect(again.id).toBe(first.id);
    await finish(control, again);
    expect(await targetOf('a6')).toMatchObject({ pausedAt: null, canaryJobId: null });
  });

  it('continues as the canary after a drain that paused it', async () => {
    const [first, second] = await heldLane('a7');
    await canary('a7');
    await finish(control, await claimOf('a7'), {
      kind: 'stopPaused',
      message: 'drained',
      by: { kind: 'drain', actor: 'worker:w1', at: new Date().toISOString() },
    });
    expect(await targetOf('a7')).toMatchObject({ canaryJobId: first.id });
    expect(await tryClaimOf('a7')).toBeUndefined();
    await resumeJob(control.db, control.schema, { jobId: first.id, actor });
    const resumed = await claimOf('a7');
    expect(resumed.id).toBe(first.id);
    await finish(control, resumed);
    expect((await claimOf('a7')).id).toBe(second.id);
  });

  it('ends with a pause of the job, before or while it runs; the job then holds the lane', async () => {
    for (const [targetId, isRunning] of [
      ['a8', false],
      ['a9', true],
    ] as const) {
      const [first] = await heldLane(targetId);
      await canary(targetId);
      const running = isRunning ? await claimOf(targetId) : undefined;
      await pauseJob(control.db, control.schema, { jobId: first.id, actor });
      if (running) await finish(control, running, { kind: 'stopPaused', message: 'paused' });
      expect(await statusOf(first)).toBe('PAUSED');
      expect(await targetOf(targetId)).toMatchObject({ pausedAt: null, canaryJobId: null });
      expect(await tryClaimOf(targetId)).toBeUndefined();
    }
  });

  it('no longer releases the lane once a person has paused the target', async () => {
    await heldLane('b1');
    await canary('b1');
    const running = await claimOf('b1');
    await pauseTarget(control.db, control.schema, { targetId: 'b1', actor, author: 'bob', reason: 'stop' });
    await finish(control, running);
    expect(await targetOf('b1')).toMatchObject({ pausedBy: 'bob', pauseReason: 'stop', canaryJobId: null });
    expect(await tryClaimOf('b1')).toBeUndefined();
  });

  it('is superseded by a resume of the target: the lane continues, whatever the job does', async () => {
    const [, second] = await heldLane('b2');
    await canary('b2');
    const running = await claimOf('b2');
    await resumeTarget(control.db, control.schema, { targetId: 'b2', actor });
    await cancelJob(control.db, control.schema, { jobId: running.id, actor });
    await finish(control, running, { kind: 'stopCanceled', message: 'canceled' });
    expect((await claimOf('b2')).id).toBe(second.id);
  });

  it('is concluded by the sweeper if the daemon died right after the job had ended', async () => {
    const [first, second] = await heldLane('b3');
    await canary('b3');
    await finish(control, await claimOf('b3'));
    // As if the second transaction had not been written.
    await control.db.query(
      `update ${control.schema}.targets set paused_at = now(), paused_by = 'ann', canary_job_id = $2, canary_paused = true where id = $1`,
      ['b3', first.id],
    );
    await control.db.query(`update ${control.schema}.jobs set lane_head = false, lane_rank = 2 where id = $1`, [
      second.id,
    ]);
    expect(await tryClaimOf('b3')).toBeUndefined();
    expect(await concludeOverdueCanaries(control.db, control.schema, 'sweeper:w1')).toBe(1);
    expect((await claimOf('b3')).id).toBe(second.id);
    expect(await concludeOverdueCanaries(control.db, control.schema, 'sweeper:w1')).toBe(0);
  });
});

describe('a canary of a paused target', () => {
  it('starts the next in line, and keeps the pause of a person unless it succeeds', async () => {
    const jobs = await addJobs(control, [{ targetId: 'c1' }, { targetId: 'c1' }, { targetId: 'c1' }]);
    await pauseTarget(control.db, control.schema, { targetId: 'c1', actor, author: 'bob', reason: 'maintenance' });
    await canary('c1');
    const running = await claimOf('c1');
    expect(running.id).toBe(jobs[0]?.id);
    await finish(control, running, failing);
    expect(await targetOf('c1')).toMatchObject({ pausedBy: 'bob', pauseReason: 'maintenance' });
    await canary('c1');
    await finish(control, await claimOf('c1'));
    expect(await targetOf('c1')).toMatchObject({ pausedAt: null });
    expect((await claimOf('c1')).id).toBe(jobs[1]?.id);
  });

  it('is refused if nothing waits, a job runs, or nothing is held', async () => {
    expect((await canary('nowhere')).status).toBe(404);
    await pauseTarget(control.db, control.schema, { targetId: 'c2', actor });
    expect((await canary('c2')).body).toMatchObject({ code: 'CONFLICT' });
    await addJob(control, { targetId: 'c3' });
    expect((await canary('c3')).body).toMatchObject({ code: 'CONFLICT' });
    await claimOf('c3');
    expect((await canary('c3')).body).toMatchObject({ code: 'CONFLICT', job_status: 'RUNNING' });
    const [, second] = await heldLane('c4');
    expect((await canary('c4', { job_id: second.id })).status).toBe(409);
    const key = await control.app.keyFor(control.tenant.id, ['read', 'enqueue']);
    expect((await control.send('POST', '/api/targets/c4/canary', { key })).status).toBe(403);
  });

  it('started by two requests at once is one canary', async () => {
    const [first] = await heldLane('c5');
    const request = { targetId: 'c5', actor };
    const both = await Promise.all([1, 2].map(() => startCanary(control.db, control.schema, request)));
    expect(both.map((target) => target.canaryJobId)).toEqual([first.id, first.id]);
    expect((await eventTypes(control, first)).filter((type) => type === 'job.resumed')).toHaveLength(1);
  });
});

describe('a bulk operation with a canary', () => {
  const begin = (filter: object) => control.post('/api/operations', { action: 'retry', filter, canary: true });
  const run = () => runOperationsOnce(control.db, control.tenant);
  const read = async (id: string) => (await control.get(`/api/operations/${id}`)).body;
  /** Lets a waiting operation be read again at once. */
  const elapse = () => control.db.query(`update ${control.schema}.operations set locked_until = null`);

  async function failedJobs(type: string): Promise<Job[]> {
    const jobs = await addJobs(control, [{ type }, { type, targetId: `${type}-1` }, { type, targetId: `${type}-2` }]);
    for (const job of (await claim(control, { types: [type] })).jobs) await finish(control, job, failing);
    return jobs;
  }

  it('resumes the oldest job, and the others only after its success', async () => {
    const [oldest, ...others] = await failedJobs('bulk.ok');
    const { id } = (await begin({ type: 'bulk.ok' })).body;
    expect(await run()).toMatchObject({ waits: true });
    await elapse();
    expect(await run()).toMatchObject({ waits: true });
    expect(await Promise.all(others.map(statusOf))).toEqual(['ERROR', 'ERROR']);
    expect(await read(id)).toMatchObject({ status: 'running', canary: 'waiting', canary_job_id: oldest?.id, done: 0 });
    const [running] = (await claim(control, { types: ['bulk.ok'] })).jobs;
    expect(running?.id).toBe(oldest?.id);
    await finish(control, running as Job);
    await elapse();
    while ((await run()).more);
    expect(await Promise.all(others.map(statusOf))).toEqual(['QUEUED', 'QUEUED']);
    expect(await read(id)).toMatchObject({ status: 'finished', canary: 'succeeded', matched: 3, done: 3, failed: 0 });
  });

  it('fails with its canary, and leaves the others on hold', async () => {
    const [oldest, ...others] = await failedJobs('bulk.bad');
    const { id } = (await begin({ type: 'bulk.bad' })).body;
    await run();
    await finish(control, (await claim(control, { types: ['bulk.bad'] })).jobs[0] as Job, failing);
    await elapse();
    await run();
    expect(await read(id)).toMatchObject({ status: 'failed', canary: 'failed', done: 0, failed: 1 });
    expect(await Promise.all([oldest as Job, ...others].map(statusOf))).toEqual(['ERROR', 'ERROR', 'ERROR']);
  });

  it('chooses no second canary after a crash between the choice and the resume', async () => {
    const jobs = await failedJobs('bulk.crash');
    const { id } = (await begin({ type: 'bulk.crash' })).body;
    await control.db.query(`update ${control.schema}.operations set canary_job_id = $2 where id = $1`, [
      id,
      jobs[1]?.id,
    ]);
    await run();
    expect(await Promise.all(jobs.map(statusOf))).toEqual(['ERROR', 'QUEUED', 'ERROR']);
    // It would be carried out before those of other tests.
    await control.db.query(`update ${control.schema}.operations set status = 'finished' where id = $1`, [id]);
  });

  it('is possible for resume and retry only', async () => {
    const refused = await control.post('/api/operations', { action: 'cancel', filter: {}, canary: true });
    expect(refused.body).toMatchObject({ code: 'INVALID_FIELD' });
  });
});

it('leaves a log and lanes without violations', async () => {
  await checkInvariants(control);
  expect((await verifyTenant(control.db, control.schema)).violations).toEqual([]);
});
