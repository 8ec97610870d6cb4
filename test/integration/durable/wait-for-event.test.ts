// A handler that waits for an event from outside: every job that waits gets it exactly once, also if it came just before
// the wait was stored, and pause, cancel, resume, drain, crash, deploy and retention do what a person expects.
import { expect, test } from 'vitest';
import { z } from 'zod';
import type { EventWaitOptions } from '../../../server/durable/durable-context.ts';
import { cancelJob, pauseJob } from '../../../server/jobs/actions/pause-and-cancel.ts';
import { resumeJob } from '../../../server/jobs/actions/resume.ts';
import { openEventWait } from '../../../server/jobs/attempt/event-waits.ts';
import { listPhases } from '../../../server/jobs/attempt/phases.ts';
import { queueDueJobs } from '../../../server/jobs/finish/due-jobs.ts';
import { finishAttempts } from '../../../server/jobs/finish/finish.ts';
import type { Job } from '../../../server/jobs/model/job.ts';
import { foreverMs } from '../../../server/jobs/model/waiting.ts';
import { deliverEvents } from '../../../server/jobs/received/deliver-events.ts';
import { matchKeyOf, receiveEvent } from '../../../server/jobs/received/receive-event.ts';
import { defineJob } from '../../../server/worker/handlers/define-job.ts';
import { startDaemon, useDaemon } from '../../support/daemon/daemon.ts';
import { eventually } from '../../support/eventually.ts';
import { addJob, addJobs, claim, eventTypes, expireLease, finish, reread } from '../../support/jobs.ts';
import { checkInvariants } from '../../support/model/invariants.ts';
import { useTenant } from '../../support/postgres/database.ts';

const context = useTenant();
const by = (job: Pick<Job, 'id'>) => ({ jobId: job.id, actor: 'user:ann' });

/** Handlers that hold here until the test lets them continue, by job id. */
const gates = new Map<string, Promise<void>>();
interface Payload {
  event: string;
  match?: Record<string, unknown>;
  timeoutSeconds?: number;
  fails?: boolean;
  gate?: string;
}

const paid = defineJob({
  type: 'paid',
  async run({ payload, waitForEvent, job }) {
    const { event, match, timeoutSeconds, fails, gate } = payload as Payload;
    if (gate !== undefined) await gates.get(gate);
    const got = await waitForEvent(event, { match, timeoutSeconds } as EventWaitOptions & { timeoutSeconds: number });
    if (fails && job.attempt <= 2) throw new Error('not yet');
    return got === undefined ? 'timed out' : got;
  },
});
const twice = defineJob({
  type: 'twice',
  async run({ waitForEvent }) {
    const first = await waitForEvent('tick');
    const second = await waitForEvent('tick');
    return [first.data, second.data];
  },
});
const parallel = defineJob({
  type: 'parallel',
  async run({ waitForEvent, sleepFor }) {
    const [a, b] = await Promise.all([
      waitForEvent('both', { name: 'a' }),
      waitForEvent('both', { name: 'b', timeoutSeconds: 3600 }),
      sleepFor('50ms'),
    ]);
    return [a.data, b?.data];
  },
});
const checked = defineJob({
  type: 'checked',
  async run({ waitForEvent }) {
    const event = await waitForEvent('amount', { schema: z.object({ cents: z.int() }) });
    return event.data.cents + 1;
  },
});
const jobs = [paid, twice, parallel, checked];
const running = useDaemon(context, { handlers: jobs });

async function enqueue(type: string, payload: unknown = {}, more: object = {}): Promise<Job> {
  const [enqueued] = await running.daemon.enqueue(context.tenant, [{ type, payload, ...more }], 'test');
  return enqueued!.job;
}

async function becomes(job: Pick<Job, 'id'>, status: Job['status']): Promise<Job> {
  await eventually(async () => expect((await reread(context, job)).status).toBe(status));
  return reread(context, job);
}

async function send(name: string, data?: unknown, id?: string) {
  const receipt = await receiveEvent(context.db, context.schema, { name, data, id }, 'user:ann');
  running.daemon.onEventReceived(context.tenant);
  return receipt;
}

/** As if so many seconds had passed. */
async function advance(job: Pick<Job, 'id'>, seconds: number): Promise<void> {
  for (const [table, column, key] of [
    ['phases', 'waits_until', 'job_id'],
    ['jobs', 'run_at', 'id'],
  ]) {
    await context.db.query(
      `update ${context.schema}.${table} set ${column} = ${column} - $2::float8 * interval '1 second' where ${key} = $1`,
      [job.id, seconds],
    );
  }
  running.daemon.workers.dueIn(context.tenant.slug, 0);
}

test('an event with the required data wakes the job, which had no lease; other jobs keep waiting', async () => {
  const one = await enqueue('paid', { event: 'invoice.paid', match: { invoice: { id: 7 } }, timeoutSeconds: 3600 });
  const other = await enqueue('paid', { event: 'invoice.paid', match: { invoice: { id: 8 } } });
  const waiting = await becomes(one, 'WAITING');
  expect(waiting).toMatchObject({ leaseOwner: null, attempt: 1, attemptFloor: 1 });
  expect(waiting.waiting).toEqual({
    ...{ kind: 'event', step: 'event:invoice.paid#1', event: 'invoice.paid', match: { invoice: { id: 7 } } },
    until: waiting.runAt,
  });
  expect((await becomes(other, 'WAITING')).waiting).not.toHaveProperty('until');
  await send('invoice.paid', { invoice: { id: 70 }, note: 7 });
  await send('invoice.sent', { invoice: { id: 7 } });
  const { id, receivedAt } = await send('invoice.paid', { invoice: { id: 7, cents: 5 } }, 'p-1');
  expect(id).toBe('p-1');
  expect((await becomes(one, 'SUCCESS')).result).toEqual({
    ...{ id, receivedAt, name: 'invoice.paid' },
    data: { invoice: { id: 7, cents: 5 } },
  });
  expect(await reread(context, other)).toMatchObject({ status: 'WAITING', attempt: 1 });
  expect(await listPhases(context.db, context.schema, one.id)).toMatchObject([{ kind: 'event', status: 'completed' }]);
  expect(await eventTypes(context, one)).toEqual([
    ...['job.enqueued', 'job.started', 'job.waiting', 'job.event_received', 'job.woken', 'job.started'],
    'job.completed',
  ]);
  await cancelJob(context.db, context.schema, by(other));
  await checkInvariants(context);
});

test('an event that arrived before the wait is returned at once, but not one from before the job', async () => {
  await send('early', 'too early');
  let open = () => {};
  gates.set('early', new Promise((resolve) => (open = resolve)));
  const job = await enqueue('paid', { event: 'early', gate: 'early' });
  await becomes(job, 'RUNNING');
  await send('early', 'in time');
  open();
  expect((await becomes(job, 'SUCCESS')).result).toMatchObject({ data: 'in time' });
  expect(await eventTypes(context, job)).not.toContain('job.waiting');
});

test('an event between the stored wait and the suspension wakes the job as soon as it is suspended', async () => {
  for (const targetId of [undefined, 'lane']) {
    await addJob(context, { type: 'by-hand', targetId });
    const job = (await claim(context, { types: ['by-hand'] })).jobs[0]!;
    const held = { jobId: job.id, leaseId: job.leaseId! };
    const call = { name: 'w', position: 0, parallel: false };
    const wanted = { event: 'between', match: null, ms: null };
    const wait = () => openEventWait(context.db, context.schema, held, call, wanted, 'worker:w1');
    expect(await wait()).toEqual({ kind: 'open', until: undefined, leftMs: foreverMs });
    const suspend = { kind: 'suspend', leftMs: foreverMs } as const;
    const awaited = { steps: ['w'] };
    await receiveEvent(context.db, context.schema, { name: 'between' }, 'test');
    await deliverEvents(context.db, context.schema, 'test');
    expect(await listPhases(context.db, context.schema, job.id)).toMatchObject([{ status: 'completed' }]);
    const waiting = { kind: 'event', step: 'w', event: 'between' } as const;
    await finish(context, job, { ...suspend, waiting, awaited });
    await queueDueJobs(context.db, context.schema, 'test');
    expect(await reread(context, job)).toMatchObject({ status: 'QUEUED', waiting: null, laneHead: true });
    expect(await wait()).toBeUndefined();
    await cancelJob(context.db, context.schema, by(job));
  }
});

test('events that race with waits reach every job once', async () => {
  const count = 40;
  const sent = Array.from({ length: count }, (_, n) => n);
  const started = Promise.all(sent.map((n) => enqueue('paid', { event: 'race', match: { n } })));
  const made = await started;
  // Each event twice: by two ids, and repeated with the same id.
  await Promise.all(
    sent.flatMap((n) => [send('race', { n }, `a${n}`), send('race', { n }, `a${n}`), send('race', { n }, `b${n}`)]),
  );
  for (const [n, job] of made.entries()) {
    expect((await becomes(job, 'SUCCESS')).result).toMatchObject({ data: { n } });
    const types = await eventTypes(context, job);
    expect(types.filter((type) => type === 'job.event_received')).toHaveLength(1);
  }
  await checkInvariants(context);
});

test('two waits of one job get two events, in the order of their arrival', async () => {
  const job = await becomes(await enqueue('twice'), 'WAITING');
  expect((await send('tick', 1, 't1')).replayed).toBe(false);
  const again = await send('tick', 1, 't1');
  expect(again).toMatchObject({ id: 't1', replayed: true });
  await expect(send('tick', 2, 't1')).rejects.toMatchObject({ code: 'IDEMPOTENCY_CONFLICT' });
  await eventually(async () => expect((await reread(context, job)).waiting?.step).toBe('event:tick#2'));
  await send('tick', 2);
  expect((await becomes(job, 'SUCCESS')).result).toEqual([1, 2]);
  const both = await becomes(await enqueue('parallel'), 'WAITING');
  await send('both', 'x');
  await eventually(async () =>
    expect((await listPhases(context.db, context.schema, both.id))[0]).toMatchObject({ status: 'completed' }),
  );
  await becomes(both, 'WAITING');
  await send('both', 'y');
  expect((await becomes(both, 'SUCCESS')).result).toEqual(['x', 'y']);
});

test('the call returns undefined if no event arrives in time; a later event does not change that', async () => {
  const job = await becomes(await enqueue('paid', { event: 'slow', timeoutSeconds: 60, fails: true }), 'WAITING');
  await advance(job, 61);
  await becomes(job, 'ERROR');
  await send('slow', 'late');
  await resumeJob(context.db, context.schema, by(job));
  running.daemon.signals.workAvailable(context.tenant);
  expect((await becomes(job, 'SUCCESS')).result).toBe('timed out');
  expect(await listPhases(context.db, context.schema, job.id)).toMatchObject([{ status: 'skipped' }]);
  expect(await eventTypes(context, job)).toContain('job.event_missed');
});

test('pause, resume and cancel: a paused job finds its event, a canceled one gets none', async () => {
  const job = await becomes(await enqueue('paid', { event: 'pausing' }, { targetId: 'p' }), 'WAITING');
  await pauseJob(context.db, context.schema, by(job));
  await send('pausing', 'meanwhile');
  await eventually(async () =>
    expect(await listPhases(context.db, context.schema, job.id)).toMatchObject([{ status: 'completed' }]),
  );
  expect(await reread(context, job)).toMatchObject({ status: 'PAUSED' });
  await resumeJob(context.db, context.schema, by(job));
  running.daemon.signals.workAvailable(context.tenant);
  expect((await becomes(job, 'SUCCESS')).result).toMatchObject({ data: 'meanwhile' });
  const ended = await becomes(await enqueue('paid', { event: 'canceling' }), 'WAITING');
  await cancelJob(context.db, context.schema, by(ended));
  await send('canceling');
  await deliverEvents(context.db, context.schema, 'test');
  expect(await reread(context, ended)).toMatchObject({ status: 'CANCELED' });
  expect(await listPhases(context.db, context.schema, ended.id)).toMatchObject([{ status: 'cancelled' }]);
  await checkInvariants(context);
});

test('a retry or a resume returns the same event again', async () => {
  const job = await becomes(await enqueue('paid', { event: 'again', fails: true }), 'WAITING');
  await send('again', 'first');
  await becomes(job, 'ERROR');
  await send('again', 'second');
  await resumeJob(context.db, context.schema, by(job));
  running.daemon.signals.workAvailable(context.tenant);
  expect((await becomes(job, 'SUCCESS')).result).toMatchObject({ data: 'first' });
});

test('data that the schema refuses fails the job and names the field', async () => {
  const job = await becomes(await enqueue('checked'), 'WAITING');
  await send('amount', { cents: 'many' });
  const failed = await becomes(job, 'ERROR');
  expect(failed.error).toMatchObject({ code: 'INVALID_EVENT', details: { field: 'data.cents' } });
  const good = await becomes(await enqueue('checked'), 'WAITING');
  await send('amount', { cents: 41 });
  expect((await becomes(good, 'SUCCESS')).result).toBe(42);
});

test('a crash after the event, and one while the event is delivered', async () => {
  await addJob(context, { type: 'crashing', maxAttempts: 3 });
  const take = async () => (await claim(context, { types: ['crashing'] })).jobs[0]!;
  const open = (job: Job) =>
    openEventWait(
      ...([context.db, context.schema] as const),
      { jobId: job.id, leaseId: job.leaseId! },
      { name: 'w', position: 0, parallel: false },
      { event: 'crash', match: null, ms: 60_000 },
      'worker:w1',
    );
  const job = await take();
  expect(await open(job)).toMatchObject({ kind: 'open' });
  await expireLease(context, job.leaseId!);
  await becomes(job, 'QUEUED');
  // Stored, and its daemon died before the delivery: another one finds it.
  await receiveEvent(context.db, context.schema, { name: 'crash', data: 1 }, 'test');
  await eventually(async () =>
    expect(await listPhases(context.db, context.schema, job.id)).toMatchObject([{ status: 'completed' }]),
  );
  expect(await open(await take())).toMatchObject({ kind: 'received', event: { data: 1 } });
  await finish(context, await reread(context, job));
});

test('a deploy may change the condition of an open wait; the drained daemon leaves the job waiting', async () => {
  const version = (match: Record<string, unknown>, event = 'deploy') =>
    defineJob({
      type: 'deployed',
      run: async ({ waitForEvent, step }) => {
        const got = await waitForEvent(event, { match, name: 'go' });
        return step('end', () => got.data);
      },
    });
  const old = await startDaemon(context, { handlers: [version({ n: 1 })] });
  const job = await addJob(context, { type: 'deployed' });
  await becomes(job, 'WAITING');
  await old.stop(0);
  expect((await reread(context, job)).status).toBe('WAITING');
  await pauseJob(context.db, context.schema, by(job));
  await resumeJob(context.db, context.schema, by(job));
  const next = await startDaemon(context, { handlers: [version({ n: 2 })] });
  expect((await becomes(job, 'WAITING')).waiting).toMatchObject({ match: { n: 2 } });
  await next.stop(0);
  await send('deploy', { n: 1 });
  await send('deploy', { n: 2 });
  await eventually(async () => expect((await reread(context, job)).status).toBe('QUEUED'));
  await startDaemon(context, { handlers: [version({ n: 2 }, 'other')] });
  const failed = await becomes(job, 'ERROR');
  expect(failed.error).toMatchObject({ code: 'STEP_ORDER_CHANGED', message: expect.stringContaining('"deploy"') });
});

test('one event for many jobs is delivered in small transactions, and finds one of many by its data', async () => {
  const count = 1000;
  await addJobs(
    context,
    Array.from({ length: count }, () => ({ type: 'crowd' })),
  );
  const { jobs: crowd } = await claim(context, { types: ['crowd'], limit: count });
  const rows = crowd.map((job, n) => ({ job_id: job.id, match: { n }, key: matchKeyOf({ n }) }));
  await context.db.query(
    `insert into ${context.schema}.phases (job_id, name, kind, position, status, event_name, match, match_key)
     select r.job_id, w.name, 'event', 0, 'running', w.name, case when w.name = 'one' then r.match end,
            case when w.name = 'one' then r.key else '' end
       from jsonb_to_recordset($1::jsonb) as r(job_id uuid, match jsonb, key text)
      cross join (values ('all'), ('one')) as w(name)`,
    [JSON.stringify(rows)],
  );
  const waiting = { kind: 'event', step: 'all', event: 'all' } as const;
  const awaited = { steps: ['all', 'one'] };
  const outcome = { kind: 'suspend', waiting, leftMs: foreverMs, awaited } as const;
  const ended = crowd.map((job) => ({ jobId: job.id, leaseId: job.leaseId!, targetId: null, outcome }));
  await finishAttempts(context.db, context.schema, ended, { actor: 'worker:w1' });
  await context.db.query(`analyze ${context.schema}.phases`);
  await send('one', { n: 617 });
  const { id: one } = crowd[617]!;
  const stateOf = (name: string) =>
    context.db.query<{ job_id: string }>(
      `select job_id from ${context.schema}.phases where name = $1 and status = 'completed'`,
      [name],
    );
  await eventually(async () => expect(await stateOf('one')).toEqual([{ job_id: one }]));
  await send('all');
  await eventually(async () => expect(await stateOf('all')).toHaveLength(count));
  const [{ max } = { max: 0 }] = await context.db.query<{ max: number }>(
    `select max(count)::int as max from (
       select count(*) from ${context.schema}.events where type = 'job.woken' group by xid) as t`,
  );
  expect(max).toBeGreaterThan(1);
  expect(max).toBeLessThanOrEqual(200);
  await checkInvariants(context);
});
