// New jobs join their lanes in one flight with the statement that locks them. What the lane's lock waited for decides
// their place.
import { afterEach, expect, test } from 'vitest';
import { pauseJob } from '../../../../server/jobs/actions/pause-and-cancel.ts';
import { enqueue, type NewJob } from '../../../../server/jobs/enqueue/enqueue.ts';
import { insertJobs, type Reservation, toInsertParts } from '../../../../server/jobs/enqueue/insert-jobs.ts';
import { placeByInsert } from '../../../../server/jobs/enqueue/place-jobs.ts';
import { finishAttemptsIn } from '../../../../server/jobs/finish/finish.ts';
import { takeNumbersForInsert } from '../../../../server/jobs/lanes/join-lanes.ts';
import { lockTargets } from '../../../../server/jobs/lanes/lane.ts';
import { pauseTarget } from '../../../../server/jobs/lanes/target.ts';
import type { Job } from '../../../../server/jobs/model/job.ts';
import { newId } from '../../../../server/kernel/ids.ts';
import { eventually } from '../../../support/eventually.ts';
import { addJob, addJobs, claim, eventTypes, finish, reread } from '../../../support/jobs.ts';
import { checkInvariants } from '../../../support/model/invariants.ts';
import { useTenantPerTest } from '../../../support/postgres/database.ts';

const context = useTenantPerTest();
afterEach(() => checkInvariants(context));

const on = (targetId: string, given: Partial<NewJob> = {}): NewJob => ({
  type: 'demo.echo',
  payload: {},
  targetId,
  ...given,
});

/** A point that one side of a race reaches, and the other waits for. */
function gate(): { open(): void; opened: Promise<void> } {
  let open = (): void => {};
  const opened = new Promise<void>((resolve) => {
    open = resolve;
  });
  return { open, opened };
}

async function untilBlocked(): Promise<void> {
  await eventually(async () => {
    const rows = await context.db.query(
      `select pid from pg_stat_activity where datname = current_database() and cardinality(pg_blocking_pids(pid)) > 0`,
    );
    expect(rows).toHaveLength(1);
  });
}

function reservation(): Reservation & { jobs: Job[] } {
  const jobs: Job[] = [];
  return {
    leaseId: newId(),
    owner: 'w1',
    leaseSeconds: 3600,
    jobs,
    started: (started) => void jobs.push(...started),
    failed: () => {},
  };
}

async function runOrder(): Promise<string[]> {
  const order: string[] = [];
  for (;;) {
    const { jobs } = await claim(context);
    if (jobs.length === 0) return order;
    for (const job of jobs) {
      await finish(context, job);
      order.push(job.id);
    }
  }
}

test('a job that is enqueued while the head of its lane ends becomes the head', async () => {
  await addJob(context, on('busy'));
  const { jobs, leaseId } = await claim(context);
  const [locked, release] = [gate(), gate()];
  const ending = context.db.transaction(async (tx) => {
    await lockTargets(tx, context.schema, ['busy']);
    const ended = {
      jobId: jobs[0]!.id,
      leaseId,
      targetId: 'busy',
      outcome: { kind: 'complete', result: null },
    } as const;
    await finishAttemptsIn(tx, context.schema, [ended], { actor: 'worker:w1', endedLeases: [leaseId] });
    locked.open();
    await release.opened;
  });
  await locked.opened;
  const enqueued = addJob(context, on('busy'));
  await untilBlocked();
  release.open();
  await ending;
  const job = await enqueued;
  expect(job).toMatchObject({ laneHead: true, laneRank: null });
  expect((await claim(context)).jobs.map(({ id }) => id)).toEqual([job.id]);
});

test('the head of a lane that ends while a job is enqueued promotes it', async () => {
  const { db, schema } = context;
  await addJob(context, on('busy'));
  const { jobs } = await claim(context);
  const [locked, release] = [gate(), gate()];
  const { rows, counts } = placeByInsert([on('busy')]);
  const [part] = await toInsertParts(rows);
  const enqueuing = db.transaction(async (tx) => {
    await takeNumbersForInsert(tx, schema, counts);
    const inserted = await insertJobs(tx, schema, part!, 'test', { lanes: 'joined', targetIds: ['busy'] });
    locked.open();
    await release.opened;
    return inserted;
  });
  await locked.opened;
  const ending = finish(context, jobs[0]!);
  await untilBlocked();
  release.open();
  const [inserted] = (await enqueuing)!;
  expect(inserted).toMatchObject({ isBehind: true, job: { laneHead: false } });
  expect((await ending).runnable).toBe(true);
  expect((await claim(context)).jobs.map(({ id }) => id)).toEqual([inserted!.job.id]);
});

test('many jobs for a few lanes, enqueued while their heads start and end, all run in their order', async () => {
  const lanes = ['a', 'b', 'c'];
  const enqueued = new Map<string, string[]>(lanes.map((lane) => [lane, []]));
  let isDone = false;
  const ran = new Map<string, string[]>(lanes.map((lane) => [lane, []]));
  const work = async () => {
    for (;;) {
      const last = isDone;
      const { jobs } = await claim(context);
      for (const job of jobs) {
        ran.get(job.targetId as string)?.push(job.id);
        await finish(context, job);
      }
      if (last && jobs.length === 0) return;
    }
  };
  const add = async (lane: string) => {
    for (let n = 0; n < 15; n++) {
      const held = reservation();
      const [one] = await enqueue(context.db, context.schema, [on(lane)], 'test', { reserve: () => held });
      enqueued.get(lane)?.push(one!.job.id);
      // It started with its insert.
      for (const job of held.jobs) {
        ran.get(lane)?.push(job.id);
        await finish(context, job);
      }
    }
  };
  const working = [work(), work()];
  await Promise.all(lanes.map(add));
  isDone = true;
  await Promise.all(working);
  expect(ran).toEqual(enqueued);
});

test('of the jobs of one call, the first of each empty lane starts, and the others wait in line', async () => {
  await addJob(context, on('busy'));
  const held = reservation();
  const given = [on('x'), on('x'), { type: 'demo.echo', payload: {} }, on('busy'), on('y', { priority: 'URGENT' })];
  const results = await enqueue(context.db, context.schema, given, 'test', { reserve: () => held });
  expect(results.map((one) => one.kind === 'created' && [one.started, one.isBehind])).toEqual([
    [true, false],
    [false, true],
    [true, false],
    [false, true],
    [true, false],
  ]);
  expect(held.jobs.map(({ id }) => id)).toEqual([0, 2, 4].map((n) => results[n]!.job.id));
  const rows = await Promise.all(results.map(({ job }) => reread(context, job)));
  expect(rows.map((job) => [job.status, job.attempt, job.leaseId, job.laneHead])).toEqual([
    ['RUNNING', 1, held.leaseId, true],
    ['QUEUED', 0, null, false],
    ['RUNNING', 1, held.leaseId, true],
    ['QUEUED', 0, null, false],
    ['RUNNING', 1, held.leaseId, true],
  ]);
  const [lease] = await context.db.query<{ job_ids: string[] }>(
    `select job_ids from ${context.schema}.leases where id = $1`,
    [held.leaseId],
  );
  expect(lease!.job_ids.sort()).toEqual(held.jobs.map(({ id }) => id).sort());
  expect(await eventTypes(context, rows[0]!)).toEqual(['job.enqueued', 'job.started']);
  expect(await eventTypes(context, rows[1]!)).toEqual(['job.enqueued']);
  for (const job of held.jobs) await finish(context, job);
});

test('without a free lane nothing starts and no lease is left', async () => {
  await addJob(context, on('busy'));
  const held = reservation();
  await enqueue(context.db, context.schema, [on('busy')], 'test', { reserve: () => held });
  expect(held.jobs).toEqual([]);
  expect(await context.db.query(`select id from ${context.schema}.leases`)).toEqual([]);
});

test('nothing starts on a paused target', async () => {
  await pauseTarget(context.db, context.schema, { targetId: 'paused', actor: 'user:ann' });
  const held = reservation();
  const results = await enqueue(context.db, context.schema, [on('paused')], 'test', { reserve: () => held });
  expect(held.jobs).toEqual([]);
  expect(results[0]!.job).toMatchObject({ laneHead: false, status: 'QUEUED' });
  expect((await claim(context)).jobs).toEqual([]);
});

test('a job that was paused before its target had a row still holds the lane', async () => {
  const early = await addJob(context, on('late', { runAt: '2100-01-01T00:00:00Z' }));
  await pauseJob(context.db, context.schema, { jobId: early.id, actor: 'user:ann', author: 'ann' });
  // As a job of a caller's transaction: it takes no number, so it creates no target.
  await context.db.query(`delete from ${context.schema}.targets`);
  await context.db.query(`update ${context.schema}.jobs set lane_head = false, lane_rank = 0 where id = $1`, [
    early.id,
  ]);
  const held = reservation();
  const results = await enqueue(context.db, context.schema, [on('late')], 'test', { reserve: () => held });
  expect(held.jobs).toEqual([]);
  expect(results[0]).toMatchObject({ isBehind: false, job: { laneHead: false } });
  expect(await reread(context, early)).toMatchObject({ status: 'PAUSED', laneHead: true });
});

test('jobs that are due and not in line yet go first', async () => {
  const due = await addJob(context, on('due', { runAt: '2100-01-01T00:00:00Z' }));
  await context.db.query(`update ${context.schema}.jobs set run_at = now() where id = $1`, [due.id]);
  const held = reservation();
  const [late] = await enqueue(context.db, context.schema, [on('due')], 'test', { reserve: () => held });
  expect(held.jobs).toEqual([]);
  expect(await runOrder()).toEqual([due.id, late!.job.id]);
});

test('a job for later does not take the head of its lane', async () => {
  const later = await addJob(context, on('timed', { runAt: '2100-01-01T00:00:00Z' }));
  expect(later).toMatchObject({ status: 'PENDING', laneHead: false, laneRank: null });
  const past = await addJob(context, on('timed', { runAt: '2000-01-01T00:00:00Z' }));
  expect(past).toMatchObject({ status: 'QUEUED', laneHead: true });
  expect(await runOrder()).toEqual([past.id]);
});

test('a repeated request leaves its lane as it was', async () => {
  const request = on('same', { clientRequestId: 'once', requestHash: 'a' });
  const send = () => enqueue(context.db, context.schema, [request], 'test', { reserve: () => reservation() });
  const answers = (await Promise.all([send(), send(), send()])).flat();
  expect(answers.map((one) => one.kind).sort()).toEqual(['created', 'replayed', 'replayed']);
  expect(new Set(answers.map(({ job }) => job.id)).size).toBe(1);
  const other = await enqueue(context.db, context.schema, [{ ...request, requestHash: 'b' }], 'test');
  expect(other[0]).toMatchObject({ kind: 'conflict', job: { id: answers[0]!.job.id } });
  const [second] = await addJobs(context, [on('same')]);
  expect(second).toMatchObject({ laneHead: false });
  await finish(context, await reread(context, answers[0]!.job));
  expect(await runOrder()).toEqual([second!.id]);
});
