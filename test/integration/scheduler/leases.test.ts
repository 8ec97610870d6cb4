// What may go wrong with a lease: silence, forgery, replays, and people who want the job to stop.
import { expect, test } from 'vitest';
import { pauseJob } from '../../../server/jobs/actions/pause-and-cancel.ts';
import { resumeJob } from '../../../server/jobs/actions/resume.ts';
import { queueDueJobs } from '../../../server/jobs/finish/due-jobs.ts';
import { finishAttempts } from '../../../server/jobs/finish/finish.ts';
import { endTimedOutLease, findTimedOutLeases } from '../../../server/jobs/finish/recover.ts';
import { useScheduler, workerId } from '../../support/http/scheduler.ts';
import { addJobs, claim, eventTypes } from '../../support/jobs.ts';
import { addTenant } from '../../support/postgres/database.ts';

const api = useScheduler();
const stateOf = async (jobId: string) => (await api.get(`/jobs/${jobId}`)).body.job.state;
const own = (job: { job_id: string }) => ({ job_id: job.job_id, worker_id: workerId });
const makeDue = async () => {
  const { db, schema } = api.tenant;
  await db.query(`update ${schema}.jobs set run_at = now() where status = 'PENDING'`);
  await queueDueJobs(db, schema, 'sweeper:test');
};

test('a silent worker costs the job its only attempt: TIMEOUT, and the lease is kept as EXPIRED', async () => {
  const { job, lease } = await api.run();
  await api.expire(lease.lease_id);
  expect((await api.get(`/lease/${lease.lease_id}`)).body.lease.state).toBe('EXPIRED');
  const beat = await api.post(`/lease/${lease.lease_id}/heartbeat`, own(job));
  expect(beat).toMatchObject({ status: 409, body: { lease_state: 'EXPIRED' } });
  await api.sweep();
  const read = await api.get(`/jobs/${job.job_id}`);
  expect(read.body).toMatchObject({
    job: { state: 'TIMEOUT', lease_id: lease.lease_id },
    result: { status: 'TIMEOUT', error: { code: 'LEASE_EXPIRED' } },
  });
  expect((await api.get('/jobs?state=TIMEOUT')).body.jobs.map((j: { job_id: string }) => j.job_id)).toContain(
    job.job_id,
  );
  expect((await api.get(`/lease/${lease.lease_id}`)).body.lease).toMatchObject({
    state: 'EXPIRED',
    release_status: null,
  });
  expect((await api.get('/stats/snapshot')).body.leases.expired_last_24h).toBeGreaterThan(0);
});

test('with attempts left the job is queued again, and writes of the lost lease are refused', async () => {
  const { job, lease } = await api.run({ addon_id: 'again', max_attempts: 2 });
  await api.expire(lease.lease_id);
  await api.sweep();
  const next = await api.claim({ addon_id: 'again', worker_id: 'w2' });
  expect(next).toMatchObject({ job_id: job.job_id, attempts: 1, lease_id: null });
  const granted = await api.post('/lease/request', { job_id: job.job_id, worker_id: 'w2' });
  const zombie = { ...own(job), status: 'SUCCEEDED', result_data: 'zombie' };
  expect((await api.post(`/lease/${lease.lease_id}/release`, zombie)).status).toBe(409);
  expect((await api.post(`/lease/${lease.lease_id}/heartbeat`, own(job))).status).toBe(409);
  // Nor does the new lease's id in the hands of the old worker.
  const newId = granted.body.lease.lease_id;
  expect((await api.post(`/lease/${newId}/release`, zombie)).status).toBe(404);
  expect((await api.post(`/lease/${newId}/heartbeat`, own(job))).status).toBe(404);
  expect(await stateOf(job.job_id)).toBe('RUNNING');
  const status = await api.post(`/jobs/${job.job_id}/status`, { state: 'RUNNING', lease_id: lease.lease_id });
  expect(status.status).toBe(409);
});

test('a release after expiry is refused, and the job ends at once as the sweeper would end it', async () => {
  const { job, lease } = await api.run();
  await api.expire(lease.lease_id);
  const late = await api.post(`/lease/${lease.lease_id}/release`, { ...own(job), status: 'SUCCEEDED' });
  expect(late).toMatchObject({ status: 409, body: { code: 'LEASE_LOST' } });
  expect(await stateOf(job.job_id)).toBe('TIMEOUT');
});

test('leases of other jobs, workers and tenants are refused', async () => {
  const { job, lease } = await api.run();
  const { job: other } = await api.run();
  const beat = (body: object, key = api.key) =>
    api.app.request('POST', `/api/scheduler/lease/${lease.lease_id}/heartbeat`, { key, body });
  expect((await beat({ ...own(job), worker_id: 'thief' })).status).toBe(404);
  expect((await beat(own(other))).status).toBe(404);
  const stranger = await addTenant(api.tenant.db, 'stranger');
  await api.app.deps.registry.refresh();
  expect((await beat(own(job), await api.app.keyFor(stranger.tenant.id))).status).toBe(404);
  expect((await beat(own(job))).status).toBe(200);
});

test('a failure is retried while attempts are left, then final', async () => {
  const { job, lease } = await api.run({ addon_id: 'retry', max_attempts: 2 });
  const failed = await api.post(`/lease/${lease.lease_id}/release`, {
    ...own(job),
    status: 'FAILED',
    error: 'out of paper',
  });
  expect(failed.body).toMatchObject({
    lease: { state: 'RELEASED', release_status: 'FAILED' },
    job: { state: 'QUEUED', next_retry_at: expect.any(String), claimed_by: null, lease_id: null },
    result: null,
  });
  await makeDue();
  await api.claim({ addon_id: 'retry' });
  const second = await api.post('/lease/request', { job_id: job.job_id });
  const final = await api.post(`/lease/${second.body.lease.lease_id}/release`, {
    ...own(job),
    status: 'FAILED',
    error: { code: 'PAPER', message: 'still none' },
  });
  expect(final.body).toMatchObject({
    job: { state: 'FAILED', attempts: 2 },
    result: { status: 'FAILED', error: { code: 'PAPER', message: 'still none' } },
  });
  // A replay of the first release still gets its own lease.
  const replay = await api.post(`/lease/${lease.lease_id}/release`, { ...own(job), status: 'FAILED' });
  expect(replay).toMatchObject({
    status: 200,
    body: { lease: { lease_id: lease.lease_id, release_status: 'FAILED' } },
  });
});

test('a failure keeps its class and stack, within bounds', async () => {
  const fail = async (error: object) => {
    const { job, lease } = await api.run({});
    const answer = await api.post(`/lease/${lease.lease_id}/release`, { ...own(job), status: 'FAILED', error });
    expect(answer.status).toBe(200);
    return answer.body.result.error;
  };
  const error = { code: 'E', message: 'm', name: 'PaperError', stack: 'PaperError: m\n  at printer.py:7', tray: 2 };
  expect(await fail(error)).toEqual(error);
  const large = await fail({ ...error, stack: 'x'.repeat(50_000), dump: 'y'.repeat(50_000) });
  expect(large).toEqual({ code: 'E', message: 'm', name: 'PaperError', stack: 'x'.repeat(6144) });
});

test('a worker may report that a failure is final, or that it timed out', async () => {
  const first = await api.run({ max_attempts: 5 });
  const final = { ...own(first.job), status: 'FAILED', recoverable: false };
  expect((await api.post(`/lease/${first.lease.lease_id}/release`, final)).body.job.state).toBe('FAILED');
  const second = await api.run({ max_attempts: 5 });
  const timeout = { ...own(second.job), status: 'TIMEOUT' };
  const answer = await api.post(`/lease/${second.lease.lease_id}/release`, timeout);
  expect(answer.body).toMatchObject({ job: { state: 'TIMEOUT' }, result: { status: 'TIMEOUT' } });
});

test('a draining worker releases a running job, and the attempt does not count', async () => {
  const { job, lease } = await api.run({ addon_id: 'drain' });
  const back = await api.post(`/lease/${lease.lease_id}/release`, { ...own(job), status: 'CANCELED', requeue: true });
  expect(back.body.job).toMatchObject({ state: 'QUEUED', attempts: 0, lease_id: null });
  expect(await api.claim({ addon_id: 'drain', worker_id: 'w2' })).toMatchObject({ job_id: job.job_id });
});

test.each(['CANCELED', 'FAILED', 'lease lost'])('a pause ends PAUSED when the worker stops: %s', async (how) => {
  const target_id = `paused ${how}`;
  const { job, lease } = await api.run({ addon_id: target_id, target_id, max_attempts: 3 });
  await api.submit({ addon_id: target_id, target_id });
  const { db, schema } = api.tenant;
  await pauseJob(db, schema, { jobId: job.job_id, actor: 'user:ann', author: 'ann' });
  const beat = await api.post(`/lease/${lease.lease_id}/heartbeat`, own(job));
  expect(beat.body.job).toMatchObject({ state: 'RUNNING', cancel_requested: true, cancel_intent: 'pause' });
  if (how === 'lease lost') {
    await api.expire(lease.lease_id);
    await api.sweep();
  } else await api.post(`/lease/${lease.lease_id}/release`, { ...own(job), status: how });
  const [row] = await db.query(`select status from ${schema}.jobs where id = $1`, [job.job_id]);
  expect(row).toEqual({ status: 'PAUSED' });
  const read = await api.get(`/jobs/${job.job_id}`);
  expect(read.body.job).toMatchObject({ state: 'QUEUED', note: expect.stringContaining('interrupted by user') });
  // The held lane gives nothing out.
  expect(await api.claim({ addon_id: target_id })).toBeUndefined();
});

test('a cancel ends CANCELED when the lease expires, and is never retried', async () => {
  const { job, lease } = await api.run({ max_attempts: 5 });
  await api.post(`/jobs/${job.job_id}/cancel`, { reason: 'no longer needed' });
  await api.expire(lease.lease_id);
  await api.sweep();
  expect(await stateOf(job.job_id)).toBe('CANCELED');
  const second = await api.run({ max_attempts: 5 });
  await api.post(`/jobs/${second.job.job_id}/cancel`, {});
  await api.post(`/lease/${second.lease.lease_id}/release`, { ...own(second.job), status: 'FAILED' });
  expect(await stateOf(second.job.job_id)).toBe('CANCELED');
});

test('work that was finished counts, although a cancel was requested', async () => {
  const { job, lease } = await api.run();
  await api.post(`/jobs/${job.job_id}/cancel`, {});
  await api.post(`/lease/${lease.lease_id}/release`, { ...own(job), status: 'SUCCEEDED' });
  expect(await stateOf(job.job_id)).toBe('DONE');
});

test('two releases at once have one effect and one answer', async () => {
  const { job, lease } = await api.run();
  const release = { ...own(job), status: 'SUCCEEDED', result_data: 1 };
  const answers = await Promise.all(
    Array.from({ length: 8 }, () => api.post(`/lease/${lease.lease_id}/release`, release)),
  );
  expect(answers.map((answer) => answer.status)).toEqual(Array(8).fill(200));
  for (const answer of answers) expect(answer.body).toEqual(answers[0]?.body);
  const types = await eventTypes(api.tenant, { id: job.job_id });
  expect(types.filter((type) => type === 'job.completed')).toHaveLength(1);
});

test('only the request that was granted a lease gets it again: another slot of the worker is refused', async () => {
  const claimed = async () => {
    await api.submit({ addon_id: 'slots', cost_units: 1 });
    return api.claim({ addon_id: 'slots' });
  };
  const job = await claimed();
  const ask = (request_id?: string) => api.post('/lease/request', { ...own(job), ...(request_id && { request_id }) });
  const { lease } = (await ask('first')).body;
  expect((await ask('first')).body.lease.lease_id).toBe(lease.lease_id);
  for (const other of [await ask('second'), await ask()]) {
    expect([other.status, other.body.code]).toEqual([409, 'INVALID_TRANSITION']);
  }
  // Both at once, as long as the job is claimed: one of them is granted the lease.
  const next = await claimed();
  const both = await Promise.all(
    ['first', 'second'].map((request_id) => api.post('/lease/request', { ...own(next), request_id })),
  );
  expect(both.map(({ status }) => status).sort()).toEqual([200, 409]);
});

test('a lease request whose answer was lost is answered again, until the lease is used', async () => {
  const { job, lease } = await api.run();
  const again = await api.post('/lease/request', { ...own(job) });
  expect(again.body).toMatchObject({ approved: true, lease: { lease_id: lease.lease_id } });
  const unnamed = await api.post('/lease/request', { job_id: job.job_id });
  expect(unnamed.body).toMatchObject({ approved: true, lease: { lease_id: lease.lease_id } });
  expect((await api.post('/lease/request', { job_id: job.job_id, worker_id: 'w2' })).status).toBe(409);
  await api.post(`/lease/${lease.lease_id}/heartbeat`, own(job));
  expect((await api.post('/lease/request', { ...own(job) })).status).toBe(409);
});

test.each([
  ['its own claim', 1],
  ['a claim of several jobs', 2],
])('a lease request sent twice at once, under %s, gets one lease', async (_what, limit) => {
  for (let round = 0; round < 20; round++) {
    const addon_id = `twice-${round}`;
    for (let n = 0; n < limit; n++) await api.submit({ addon_id, cost_units: 1 });
    const claimed = await api.post('/jobs/claim', { addon_id, worker_id: workerId, limit });
    const { job_id } = limit === 1 ? claimed.body.job : claimed.body.jobs[0];
    const named = round % 2 === 0 ? { worker_id: workerId } : {};
    const request = () => api.post('/lease/request', { job_id, ...named });
    const answers = await Promise.all([request(), request()]);
    expect(answers.map((answer) => [answer.status, answer.body.approved])).toEqual([
      [200, true],
      [200, true],
    ]);
    expect(answers[0]?.body.lease.lease_id).toBe(answers[1]?.body.lease.lease_id);
    expect((await api.get(`/jobs/${job_id}`)).body.job).toMatchObject({ state: 'RUNNING', attempts: 1 });
  }
});

test('a release lets the lane continue', async () => {
  const target_id = 'printer';
  const { job, lease } = await api.run({ addon_id: 'lane', target_id });
  const next = await api.submit({ addon_id: 'lane', target_id });
  expect(await api.claim({ addon_id: 'lane' })).toBeUndefined();
  await api.post(`/lease/${lease.lease_id}/release`, { ...own(job), status: 'SUCCEEDED' });
  expect(await api.claim({ addon_id: 'lane' })).toMatchObject({ job_id: next.job_id });
});

test('progress is recorded once, however often it is repeated', async () => {
  const { job, lease } = await api.run();
  for (let i = 0; i < 3; i++) {
    await api.post(`/lease/${lease.lease_id}/heartbeat`, { ...own(job), progress: 0.3, message: 'a third' });
  }
  const types = await eventTypes(api.tenant, { id: job.job_id });
  expect(types.filter((type) => type === 'job.progress')).toHaveLength(1);
});

test('a result above the limit is refused, and the lease stays active', async () => {
  const { job, lease } = await api.run();
  const huge = { ...own(job), status: 'SUCCEEDED', result_data: 'x'.repeat(1_048_577) };
  expect((await api.post(`/lease/${lease.lease_id}/release`, huge)).status).toBe(413);
  expect((await api.post(`/lease/${lease.lease_id}/heartbeat`, own(job))).status).toBe(200);
});

test('a job that used more tokens than allowed is stopped, and fails whatever its worker reports', async () => {
  const { job, lease } = await api.run({ token_limit: 100, max_attempts: 3 });
  const beat = (tokens_used: number) => api.post(`/lease/${lease.lease_id}/heartbeat`, { ...own(job), tokens_used });
  expect((await beat(100)).body.job).toMatchObject({ tokens_used: 100, cancel_requested: false });
  expect((await beat(90)).body.job).toMatchObject({ tokens_used: 100 });
  expect((await beat(101)).body.job).toMatchObject({ tokens_used: 101, cancel_requested: true });
  const released = await api.post(`/lease/${lease.lease_id}/release`, { ...own(job), status: 'SUCCEEDED' });
  expect(released.body).toMatchObject({ job: { state: 'FAILED' }, result: { error: { code: 'TOKEN_LIMIT' } } });
});

test('release, cancel, pause, heartbeat and sweep at once leave one outcome', async () => {
  const { db, schema } = api.tenant;
  const sweepSlowly = async (leaseId: string) => {
    await api.expire(leaseId);
    await api.sweep();
  };
  for (let round = 0; round < 12; round++) {
    const { job, lease } = await api.run({ addon_id: `storm-${round}`, target_id: `storm-${round}` });
    await api.submit({ addon_id: `storm-${round}`, target_id: `storm-${round}` });
    const path = `/lease/${lease.lease_id}`;
    const [release] = await Promise.all([
      api.post(`${path}/release`, { ...own(job), status: round % 2 ? 'SUCCEEDED' : 'FAILED' }),
      api.post(`/jobs/${job.job_id}/cancel`, {}),
      pauseJob(db, schema, { jobId: job.job_id, actor: 'user:ann' }).catch(() => undefined),
      api.post(`${path}/heartbeat`, own(job)),
      ...(round % 3 === 0 ? [sweepSlowly(lease.lease_id)] : []),
    ]);
    const ends = (await eventTypes(api.tenant, { id: job.job_id })).filter((type) =>
      ['job.completed', 'job.failed', 'job.paused', 'job.lease_expired'].includes(type),
    );
    const state = await stateOf(job.job_id);
    expect(state).not.toBe('RUNNING');
    // A held job may be canceled by the cancel of this round; the attempt itself ends once.
    expect(ends.length).toBeLessThanOrEqual(1);
    const { lease: after } = (await api.get(path)).body;
    expect(after.state).toBe(release.status === 200 ? 'RELEASED' : 'EXPIRED');
    if (state === 'DONE' || state === 'CANCELED') {
      expect(await api.claim({ addon_id: `storm-${round}` })).toBeDefined();
    }
  }
});

test('an attempt that exceeds the timeout of its job is ended, and its worker is refused', async () => {
  const { job, lease } = await api.run();
  const { db, schema } = api.tenant;
  const sweep = async () => {
    const leases = await findTimedOutLeases(db, schema, 0, 10);
    for (const found of leases)
      await endTimedOutLease(db, schema, found, {
        actor: 'sweeper:test',
        tokenLimit: 0,
        timeoutSeconds: 0,
      });
    return leases.map((found) => found.id);
  };
  expect(await sweep()).toEqual([]);
  await db.query(
    `update ${schema}.jobs set timeout_seconds = 5, started_at = now() - interval '6 seconds' where id = $1`,
    [job.job_id],
  );
  expect(await sweep()).toEqual([lease.lease_id]);
  expect(await api.get(`/jobs/${job.job_id}`)).toMatchObject({
    body: { job: { state: 'TIMEOUT' }, result: { error: { code: 'TIMEOUT' } } },
  });
  const release = await api.post(`/lease/${lease.lease_id}/release`, { ...own(job), status: 'SUCCEEDED' });
  expect(release.status).toBe(409);
  expect(await stateOf(job.job_id)).toBe('TIMEOUT');
});

test('the lease of a daemon can be read like a remote one, and stays after its end', async () => {
  const { db, schema } = api.tenant;
  const jobs = await addJobs(api.tenant, [
    { queue: 'q', costUnits: 2 },
    { queue: 'q', costUnits: 3 },
  ]);
  const { leaseId, jobs: claimed } = await claim(api.tenant, { owner: 'daemon-1', leaseSeconds: 60 });
  const job_ids = expect.arrayContaining(jobs.map((job) => job.id));
  const read = async () => (await api.get(`/lease/${leaseId}`)).body.lease;
  expect(await read()).toMatchObject({
    kind: 'in_process',
    job_ids,
    addon_id: 'q',
    cost_units: 5,
    worker_id: 'daemon-1',
    ttl_sec: 60,
    state: 'ACTIVE',
    released_at: null,
  });
  const items = claimed.map((job) => ({
    jobId: job.id,
    leaseId,
    targetId: null,
    outcome: { kind: 'complete' as const, result: null },
  }));
  await finishAttempts(db, schema, items, { actor: 'worker:daemon-1', endedLeases: [leaseId] });
  expect(await read()).toMatchObject({
    kind: 'in_process',
    job_ids,
    state: 'RELEASED',
    released_at: expect.any(String),
  });
  // It is nobody's to use: workers act on remote leases only.
  const { body } = await api.get(`/jobs/${jobs[0]?.id}`);
  expect(body.job).toMatchObject({ state: 'DONE', lease_id: leaseId, claimed_by: 'daemon-1' });
  const forged = { job_id: jobs[0]?.id, worker_id: 'daemon-1' };
  expect((await api.post(`/lease/${leaseId}/heartbeat`, forged)).status).toBe(404);
});

test('a lease that is requested again lasts for its full time from the last request', async () => {
  const { db, schema } = api.tenant;
  await api.submit({ addon_id: 'twice' });
  const job = await api.claim({ addon_id: 'twice' });
  const ask = () => api.post('/lease/request', { ...own(job), ttl_sec: 30 });
  const { lease } = (await ask()).body;
  await db.query(`update ${schema}.leases set expires_at = now() + interval '15 seconds' where id = $1`, [
    lease.lease_id,
  ]);
  const again = (await ask()).body.lease;
  expect(again.lease_id).toBe(lease.lease_id);
  expect(Date.parse(again.expires_at) - Date.parse(again.granted_at)).toBeGreaterThanOrEqual(30_000);
});

test('an attempt without its own limit has the default, and 0 means none', async () => {
  const { db, schema } = api.tenant;
  const started = async (timeout: number | null) => {
    const { job, lease } = await api.run();
    await db.query(
      `update ${schema}.jobs set timeout_seconds = $2, started_at = now() - interval '6 seconds' where id = $1`,
      [job.job_id, timeout],
    );
    return { job, lease };
  };
  const plain = await started(null);
  const unlimited = await started(0);
  const find = async (seconds: number) => (await findTimedOutLeases(db, schema, seconds, 10)).map((found) => found.id);
  expect(await find(0)).toEqual([]);
  expect(await find(60)).toEqual([]);
  expect(await find(5)).toEqual([plain.lease.lease_id]);
  const [found] = await findTimedOutLeases(db, schema, 5, 10);
  await endTimedOutLease(db, schema, found!, { actor: 'sweeper:test', tokenLimit: 0, timeoutSeconds: 5 });
  const [row] = await db.query(`select status, error from ${schema}.jobs where id = $1`, [plain.job.job_id]);
  expect(row).toMatchObject({ status: 'ERROR', error: { code: 'TIMEOUT', message: expect.stringContaining('5 s') } });
  expect(await stateOf(unlimited.job.job_id)).toBe('RUNNING');
});

test.each([
  ['CANCELED', { requeue: true }],
  ['FAILED', { recoverable: true, error: { message: 'not now' } }],
])(
  'a release as %s that requeues the job gets the same answer when it is repeated after the next claim',
  async (status, more) => {
    const addon_id = `repeated-${status}`;
    const { job, lease } = await api.run({ addon_id, max_attempts: 3, payload: { big: true } });
    const body = { ...own(job), status, ...more };
    const first = await api.post(`/lease/${lease.lease_id}/release`, body);
    expect(first).toMatchObject({ status: 200, body: { job: { state: 'QUEUED', lease_id: null }, result: null } });
    await makeDue();
    expect(await api.claim({ addon_id, worker_id: 'w2' })).toMatchObject({ job_id: job.job_id });
    await api.post('/lease/request', { job_id: job.job_id, worker_id: 'w2' });
    expect(await stateOf(job.job_id)).toBe('RUNNING');
    const again = await api.post(`/lease/${lease.lease_id}/release`, body);
    expect(JSON.stringify(again.body)).toBe(JSON.stringify(first.body));
  },
);

test('a failed release gets the same answer when it is repeated after a resume', async () => {
  const { job, lease } = await api.run({ addon_id: 'resumed' });
  const body = { ...own(job), status: 'FAILED', error: { message: 'broken' } };
  const first = await api.post(`/lease/${lease.lease_id}/release`, body);
  expect(first.body).toMatchObject({ job: { state: 'FAILED' }, result: { error: { message: 'broken' } } });
  const { db, schema } = api.tenant;
  await resumeJob(db, schema, { jobId: job.job_id, actor: 'user:ann', author: 'ann' });
  expect(await stateOf(job.job_id)).toBe('QUEUED');
  const again = await api.post(`/lease/${lease.lease_id}/release`, body);
  expect(JSON.stringify(again.body)).toBe(JSON.stringify(first.body));
});
