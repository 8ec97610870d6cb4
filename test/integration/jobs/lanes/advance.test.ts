// Settling the head of a lane and starting the next in line, as one transaction: what it starts, what
// it must leave alone, and that nothing of it is ever half done.
import { v7 as uuidv7 } from 'uuid';
import { afterEach, expect, onTestFinished, test } from 'vitest';
import type { Queryable } from '../../../../server/database/database.ts';
import { cancelJob, pauseJob } from '../../../../server/jobs/actions/pause-and-cancel.ts';
import { resumeJob } from '../../../../server/jobs/actions/resume.ts';
import type { NamedClaim } from '../../../../server/jobs/claim/claim.ts';
import { enqueueIn } from '../../../../server/jobs/enqueue/enqueue.ts';
import { expireUnstartedJobs, queueDueJobs } from '../../../../server/jobs/finish/due-jobs.ts';
import { type FinishResult, finishAttempts, finishAttemptsIn } from '../../../../server/jobs/finish/finish.ts';
import type { Outcome } from '../../../../server/jobs/finish/outcome.ts';
import { lockTargets } from '../../../../server/jobs/lanes/lane.ts';
import { pauseTarget } from '../../../../server/jobs/lanes/target.ts';
import type { Job } from '../../../../server/jobs/model/job.ts';
import { eventually } from '../../../support/eventually.ts';
import { addJobs, claim, eventTypes, finish, reread } from '../../../support/jobs.ts';
import { checkInvariants } from '../../../support/model/invariants.ts';
import { citusCluster } from '../../../support/postgres/citus.ts';
import { lockWaiters, staysOpen, useTenantPerTest } from '../../../support/postgres/database.ts';

const context = useTenantPerTest();
const error = { code: 'HANDLER_ERROR', message: 'no' };
const complete: Outcome = { kind: 'complete', result: null };
let number = 0;
const newTarget = () => `next-${++number}`;

/** A lane whose head runs; the others wait in line. */
async function startLane(...others: Parameters<typeof addJobs>[1]): Promise<{ targetId: string; jobs: Job[] }> {
  const targetId = newTarget();
  const added = await addJobs(
    context,
    [{}, ...others].map((job) => ({ ...job, targetId })),
  );
  const { jobs } = await claim(context);
  expect(jobs.map((job) => job.id)).toEqual([added[0]?.id]);
  return { targetId, jobs: [jobs[0]!, ...added.slice(1)] };
}

interface Finish {
  outcome?: Outcome;
  next?: Partial<NamedClaim>;
}

function settlements(jobs: readonly Job[], outcome: Outcome) {
  return jobs.map((job) => ({ jobId: job.id, leaseId: job.leaseId as string, targetId: job.targetId, outcome }));
}

function request(next: Partial<NamedClaim> = {}): NamedClaim {
  return { leaseId: uuidv7(), owner: 'w2', limit: 100, leaseSeconds: 15, ...next };
}

async function finishAndTake(jobs: readonly Job[], { outcome = complete, next }: Finish = {}): Promise<FinishResult> {
  const options = { actor: 'worker:w1', claimNext: request(next) };
  return finishAttempts(context.db, context.schema, settlements(jobs, outcome), options);
}

const taken = ({ claimed }: FinishResult) => claimed?.jobs.map((job) => job.id);

async function leasesOf(job: Pick<Job, 'id'>): Promise<unknown[]> {
  return context.db.query(`select id, kind, owner, job_ids from ${context.schema}.leases where $1 = any(job_ids)`, [
    job.id,
  ]);
}

afterEach(() => checkInvariants(context));

test('the next job in line starts with the end of the one before, under the requested lease', async () => {
  const { targetId, jobs } = await startLane({}, {});
  const leaseId = uuidv7();
  const finished = await finishAndTake([jobs[0]!], { next: { leaseId, types: ['demo.echo'] } });
  expect(finished.accepted).toEqual(new Set([jobs[0]!.id]));
  expect(finished.claimed).toMatchObject({
    leaseId,
    jobs: [{ id: jobs[1]!.id, status: 'RUNNING', attempt: 1, leaseId, leaseOwner: 'w2', targetId, type: 'demo.echo' }],
  });
  // Nothing was left to claim: its lane is taken.
  expect(finished.runnable).toBe(false);
  expect(await reread(context, jobs[0]!)).toMatchObject({ status: 'SUCCESS', laneHead: false });
  const next = await reread(context, jobs[1]!);
  expect(next).toMatchObject({ status: 'RUNNING', laneHead: true, laneRank: null, attempt: 1, leaseId });
  expect(next.startedAt).not.toBeNull();
  expect(await leasesOf(next)).toEqual([{ id: leaseId, kind: 'local', owner: 'w2', job_ids: [next.id] }]);
  expect(await eventTypes(context, next)).toEqual(['job.enqueued', 'job.started']);
  const [started] = await context.db.query(
    `select actor, from_status, to_status, lease_id, attempt from ${context.schema}.events where job_id = $1 and type = 'job.started'`,
    [next.id],
  );
  expect(started).toEqual({
    actor: 'worker:w2',
    from_status: 'QUEUED',
    to_status: 'RUNNING',
    lease_id: leaseId,
    attempt: 1,
  });
  expect(await reread(context, jobs[2]!)).toMatchObject({ status: 'QUEUED', laneHead: false });
});

test('the end of one and the start of the next are one transaction', async () => {
  const { jobs } = await startLane({});
  await finishAndTake([jobs[0]!]);
  const rows = await context.db.query(
    `select distinct xid from ${context.schema}.events
      where (job_id = $1 and type = 'job.completed') or (job_id = $2 and type = 'job.started')`,
    [jobs[0]!.id, jobs[1]!.id],
  );
  expect(rows).toHaveLength(1);
});

test('a lane is worked off in this way, urgent jobs first, then in the order of enqueue', async () => {
  const { jobs } = await startLane({ priority: 'LOW' }, {}, { priority: 'URGENT' }, {});
  const [first, low, normal, urgent, late] = jobs;
  const order: (string | undefined)[] = [];
  for (let running: Job | undefined = first; running; ) {
    order.push(running.id);
    const { claimed } = await finishAndTake([running]);
    running = claimed?.jobs[0];
  }
  expect(order).toEqual([first, urgent, normal, late, low].map((job) => job?.id));
});

test('the next job in line is found, however much later it was enqueued', async () => {
  const gone = Array.from({ length: 8 }, () => ({}));
  const { jobs } = await startLane(...gone, {}, { priority: 'LOW' });
  for (const job of jobs.slice(1, 9)) await cancelJob(context.db, context.schema, { jobId: job.id, actor: 'user:ann' });
  const finished = await finishAndTake([jobs[0]!]);
  expect(taken(finished)).toEqual([jobs[9]!.id]);
  expect(taken(await finishAndTake(finished.claimed?.jobs ?? []))).toEqual([jobs[10]!.id]);
});

test('in the log the end of one job comes before the start of the next', async () => {
  const lanes = [await startLane({}), await startLane({})];
  await finishAndTake(lanes.map(({ jobs }) => jobs[0]!));
  const rows = await context.db.query<{ type: string }>(`select type from ${context.schema}.events order by xid, seq`);
  expect(rows.slice(-4).map((row) => row.type)).toEqual([
    'job.completed',
    'job.completed',
    'job.started',
    'job.started',
  ]);
});

test('outcomes of several kinds free their lanes together; the largest group also claims the next jobs', async () => {
  const lanes = [await startLane({}), await startLane({}), await startLane({}), await startLane({})];
  const [first, second, third, fourth] = lanes.map(({ jobs }) => jobs[0]!);
  await context.db.query(`update ${context.schema}.jobs set on_error = 'continue' where id = $1`, [third!.id]);
  const items = [
    ...settlements([first!, second!], complete),
    ...settlements([third!], { kind: 'fail', error }),
    ...settlements([fourth!], { kind: 'stopCanceled', message: 'canceled' }),
  ];
  const finished = await finishAttempts(context.db, context.schema, items, {
    actor: 'worker:w1',
    claimNext: request(),
  });
  expect(finished.accepted.size).toBe(4);
  expect(finished.runnable).toBe(true);
  expect(taken(finished)?.sort()).toEqual([lanes[0]!.jobs[1]!.id, lanes[1]!.jobs[1]!.id].sort());
  for (const { jobs } of lanes.slice(2)) {
    expect(await reread(context, jobs[1]!)).toMatchObject({ status: 'QUEUED', laneHead: true, laneRank: null });
  }
});

test('a job that is enqueued while an outcome waits for the lane is next in it', async () => {
  const { targetId, jobs } = await startLane();
  let settling: Promise<FinishResult> | undefined;
  const added = await context.db.transaction(async (tx) => {
    await lockTargets(tx, context.schema, [targetId]);
    settling = finishAndTake(jobs);
    // It has its snapshot already, and stands behind this transaction.
    await eventually(async () => {
      expect(await context.db.query(lockWaiters(context.schema))).toHaveLength(1);
    });
    const [job] = await enqueueIn(tx, context.schema, [{ type: 'demo.echo', payload: {}, targetId }], 'test');
    return job?.job.id;
  }, staysOpen);
  expect(taken(await settling!)).toEqual([added]);
});

test('several lanes continue at once and share the lease', async () => {
  const lanes = [await startLane({}), await startLane({}), await startLane()];
  const finished = await finishAndTake(lanes.map(({ jobs }) => jobs[0]!));
  expect(taken(finished)?.sort()).toEqual([lanes[0]!.jobs[1]!.id, lanes[1]!.jobs[1]!.id].sort());
  for (const { jobs } of lanes.slice(0, 2)) {
    expect(await reread(context, jobs[1]!)).toMatchObject({ status: 'RUNNING', leaseId: finished.claimed?.leaseId });
  }
  const [lease] = await leasesOf(lanes[0]!.jobs[1]!);
  expect(await leasesOf(lanes[1]!.jobs[1]!)).toEqual([lease]);
});

test('no more jobs start than requested; the others become heads that any worker can claim', async () => {
  const lanes = [await startLane({}, {}), await startLane({}, {}), await startLane({}, {})];
  const finished = await finishAndTake(
    lanes.map(({ jobs }) => jobs[0]!),
    { next: { limit: 2 } },
  );
  expect(finished.claimed?.jobs).toHaveLength(2);
  expect(finished.runnable).toBe(true);
  const nexts = await Promise.all(lanes.map(({ jobs }) => reread(context, jobs[1]!)));
  expect(nexts.map((job) => job.status).sort()).toEqual(['QUEUED', 'RUNNING', 'RUNNING']);
  const left = nexts.find((job) => job.status === 'QUEUED')!;
  expect(left).toMatchObject({ laneHead: true, laneRank: null, leaseId: null, attempt: 0 });
  expect(await leasesOf(left)).toEqual([]);
  expect((await claim(context)).jobs.map((job) => job.id)).toEqual([left.id]);
});

test('a job of a type without a handler becomes the head of its lane, for other workers', async () => {
  const { jobs } = await startLane({ type: 'elsewhere' }, {});
  const finished = await finishAndTake([jobs[0]!], { next: { types: ['demo.echo', 'demo.sleep'] } });
  expect([taken(finished), finished.runnable]).toEqual([[], true]);
  expect(await reread(context, jobs[1]!)).toMatchObject({ status: 'QUEUED', laneHead: true, laneRank: null });
  // Nor is one behind it taken in its place.
  expect(await reread(context, jobs[2]!)).toMatchObject({ status: 'QUEUED', laneHead: false });
});

test('a job for remote workers becomes the head of its lane, for them', async () => {
  const { jobs } = await startLane({ remote: true }, {});
  expect(taken(await finishAndTake([jobs[0]!]))).toEqual([]);
  expect(await reread(context, jobs[1]!)).toMatchObject({ status: 'QUEUED', laneHead: true, remote: true });
  expect(await leasesOf(jobs[1]!)).toEqual([]);
  expect(await reread(context, jobs[2]!)).toMatchObject({ status: 'QUEUED', laneHead: false });
});

test('a job of a paused target does not start', async () => {
  const { targetId, jobs } = await startLane({});
  await pauseTarget(context.db, context.schema, { targetId, actor: 'user:ann' });
  const finished = await finishAndTake([jobs[0]!]);
  expect([taken(finished), finished.runnable]).toEqual([[], false]);
  expect(await reread(context, jobs[1]!)).toMatchObject({ status: 'QUEUED', laneHead: false, attempt: 0 });
});

test('a paused job that waits to hold the lane becomes its head, and holds it', async () => {
  const { jobs } = await startLane({}, {});
  await pauseJob(context.db, context.schema, { jobId: jobs[2]!.id, actor: 'user:ann' });
  expect(taken(await finishAndTake([jobs[0]!]))).toEqual([]);
  expect(await reread(context, jobs[2]!)).toMatchObject({ status: 'PAUSED', laneHead: true, laneRank: null });
  expect(await leasesOf(jobs[2]!)).toEqual([]);
  expect(await reread(context, jobs[1]!)).toMatchObject({ status: 'QUEUED', laneHead: false });
});

test('a failed job that waits to hold the lane becomes its head, and holds it', async () => {
  const { jobs } = await startLane({}, {});
  await context.db.query(`update ${context.schema}.jobs set expires_at = now() - interval '1 s' where id = $1`, [
    jobs[2]!.id,
  ]);
  expect(await expireUnstartedJobs(context.db, context.schema, 'sweeper:test')).toBe(1);
  expect(await reread(context, jobs[2]!)).toMatchObject({ status: 'ERROR', laneHead: false, laneRank: 0 });
  expect(taken(await finishAndTake([jobs[0]!]))).toEqual([]);
  expect(await reread(context, jobs[2]!)).toMatchObject({ status: 'ERROR', laneHead: true, laneRank: null });
  expect(await leasesOf(jobs[2]!)).toEqual([]);
  expect(await reread(context, jobs[1]!)).toMatchObject({ status: 'QUEUED', laneHead: false });
});

test('a resumed job goes first', async () => {
  const { jobs } = await startLane({ priority: 'URGENT' }, { priority: 'LOW' });
  await pauseJob(context.db, context.schema, { jobId: jobs[2]!.id, actor: 'user:ann' });
  await resumeJob(context.db, context.schema, { jobId: jobs[2]!.id, actor: 'user:ann' });
  expect(taken(await finishAndTake([jobs[0]!]))).toEqual([jobs[2]!.id]);
});

test.each<[string, Outcome, object]>([
  ['failed and blocks', { kind: 'fail', error }, { status: 'ERROR', laneHead: true }],
  ['waits for its retry', { kind: 'retry', error, delayMs: 3_600_000 }, { status: 'PENDING', laneHead: true }],
  ['was paused', { kind: 'stopPaused', message: 'paused' }, { status: 'PAUSED', laneHead: true }],
  ['was given back', { kind: 'requeue', reason: 'drained' }, { status: 'QUEUED', laneHead: true, attempt: 0 }],
])('a lane whose head %s keeps its head', async (_what, outcome, expected) => {
  const { jobs } = await startLane({});
  expect(taken(await finishAndTake([jobs[0]!], { outcome }))).toEqual([]);
  expect(await reread(context, jobs[0]!)).toMatchObject(expected);
  expect(await reread(context, jobs[1]!)).toMatchObject({ status: 'QUEUED', laneHead: false, attempt: 0 });
  expect(await leasesOf(jobs[1]!)).toEqual([]);
});

test('a failure that does not hold the lane lets the next job start', async () => {
  const targetId = newTarget();
  const [first, second] = await addJobs(context, [{ targetId, onError: 'continue' }, { targetId }]);
  const { jobs } = await claim(context);
  expect(taken(await finishAndTake(jobs, { outcome: { kind: 'fail', error } }))).toEqual([second!.id]);
  expect(await reread(context, first!)).toMatchObject({ status: 'ERROR', laneHead: false });
});

test('an outcome whose lease is lost starts nothing', async () => {
  const { jobs } = await startLane({});
  const finished = await finishAndTake([{ ...jobs[0]!, leaseId: uuidv7() }]);
  expect([finished.accepted.size, taken(finished)]).toEqual([0, []]);
  expect(await reread(context, jobs[0]!)).toMatchObject({ status: 'RUNNING', laneHead: true });
  expect(await reread(context, jobs[1]!)).toMatchObject({ status: 'QUEUED', laneHead: false });
});

test('a due retry keeps its lane: no waiting job goes first, however urgent', async () => {
  const { jobs } = await startLane({ priority: 'URGENT' });
  await context.db.query(`update ${context.schema}.jobs set max_attempts = 2 where id = $1`, [jobs[0]!.id]);
  await finishAndTake([jobs[0]!], { outcome: { kind: 'retry', error, delayMs: 0 } });
  expect(await reread(context, jobs[0]!)).toMatchObject({ status: 'PENDING', laneHead: true, laneRank: null });
  expect((await claim(context)).jobs).toEqual([]);
  expect(await queueDueJobs(context.db, context.schema, 'worker:w1')).toBe(1);
  expect(await reread(context, jobs[0]!)).toMatchObject({ status: 'QUEUED', laneHead: true, laneRank: null });
  const again = await claim(context);
  expect(again.jobs.map((job) => [job.id, job.attempt])).toEqual([[jobs[0]!.id, 2]]);
  expect(taken(await finishAndTake(again.jobs))).toEqual([jobs[1]!.id]);
});

/** Everything that a settle with a claim writes. */
async function everything(): Promise<unknown> {
  const { db, schema } = context;
  return {
    jobs: await db.query(`select * from ${schema}.jobs order by id`),
    targets: await db.query(`select * from ${schema}.targets order by id`),
    leases: await db.query(`select * from ${schema}.leases order by id`),
    events: await db.query(`select * from ${schema}.events order by seq`),
  };
}

test('a crash after the claim and before the commit leaves everything as it was', async () => {
  const { jobs } = await startLane({}, {});
  const before = await everything();
  const crashed = context.db.transaction(async (tx) => {
    const options = { actor: 'worker:w1', endedLeases: [jobs[0]!.leaseId as string], claimNext: request() };
    const finished = await finishAttemptsIn(tx, context.schema, settlements([jobs[0]!], complete), options);
    expect(taken(finished)).toEqual([jobs[1]!.id]);
    throw new Error('crash');
  });
  await expect(crashed).rejects.toThrow('crash');
  expect(await everything()).toEqual(before);
  expect(taken(await finishAndTake([jobs[0]!]))).toEqual([jobs[1]!.id]);
});

test('a claim that fails rolls back the outcome', async () => {
  const { db, schema } = context;
  const { jobs } = await startLane({});
  const before = await everything();
  await db.query(`alter table ${schema}.leases add constraint nobody check (owner <> 'nobody')`);
  onTestFinished(() => db.query(`alter table ${schema}.leases drop constraint if exists nobody`).then(() => {}));
  await expect(finishAndTake([jobs[0]!], { next: { owner: 'nobody' } })).rejects.toThrow('nobody');
  expect(await everything()).toEqual(before);
  // Without the claim the outcome is good.
  await finish(context, jobs[0]!);
  expect(await reread(context, jobs[1]!)).toMatchObject({ status: 'QUEUED', laneHead: true });
});

// Behind a pooler no plan is kept.
test.skipIf(process.env.TEST_POOLER_URL)(
  'the kept plan scans no table, even if it was made while all were empty',
  async () => {
    const { db, schema } = context;
    const texts: string[] = [];
    const spy: Queryable = {
      query: (text) => {
        texts.push(text);
        return Promise.resolve([]);
      },
    };
    const jobs = [0, 1].map(() => ({ id: uuidv7(), leaseId: uuidv7(), targetId: 'none' }) as Job);
    const one = { ...complete, result: 1 };
    for (const [of, outcome] of [
      [jobs.slice(1), complete],
      [jobs, one],
      [jobs, { kind: 'completePartly', result: 1 }],
      [jobs, { kind: 'stopCanceled', message: 'canceled' }],
    ] as const) {
      for (const next of [{ claimNext: request({ types: ['demo.echo'] }) }, {}]) {
        await finishAttemptsIn(spy, schema, settlements(of, outcome), { actor: 'worker:w1', ...next });
      }
    }
    const planned = await db.pipelinedTransaction((tx) => {
      // In a cluster the first statement of a transaction chooses the node.
      void tx.query(`select 1 from ${schema}.jobs limit 1`);
      return Promise.all(
        texts.map(async (text, n) => {
          const places = new Set(text.match(/\$\d+/g)).size;
          void tx.query(`prepare kept_${n} as ${text}`);
          const plan = tx.query(`explain execute kept_${n}(${Array.from({ length: places }, () => 'null').join()})`);
          void tx.query(`deallocate kept_${n}`);
          return (await plan).map((row) => row['QUERY PLAN']).join('\n');
        }),
      );
    });
    // Each call: the lock, the outcome, which the spy refuses, then the lock and what may be the reason.
    expect(planned).toHaveLength(32);
    for (const plan of planned) expect(plan).not.toMatch(/Seq Scan/);
    // The next in line comes from the index that has it in order, and nothing is sorted for it.
    const line = /Limit[^\n]*\n\s*->\s+Index Scan using jobs_target_id_lane_rank_lane_seq/g;
    const settling = planned.filter((plan) => plan.includes('CTE finished'));
    expect(settling).toHaveLength(8);
    for (const plan of settling) {
      expect(plan.match(line)).toHaveLength(2);
      expect(plan).toContain('Index Scan using jobs_pkey');
    }
  },
);

test('an outcome that cannot be encoded does not make other outcomes fail', async () => {
  const lanes = [await startLane({}), await startLane({})];
  const circular: Record<string, unknown> = {};
  circular.self = circular;
  const items = [
    ...settlements([lanes[0]!.jobs[0]!], { kind: 'stopCanceled', message: 'canceled' }),
    ...settlements([lanes[1]!.jobs[0]!], { kind: 'complete', result: circular }),
  ];
  const before = await everything();
  await expect(finishAttempts(context.db, context.schema, items, { actor: 'worker:w1' })).rejects.toThrow('circular');
  expect(await everything()).toEqual(before);
});

// The trigger's sequence would have to be on each node.
test.skipIf(citusCluster())('a requeue that meets a deadlock is retried', async () => {
  const { db, schema } = context;
  const { jobs } = await startLane({});
  await db.query(`create sequence ${schema}.tries`);
  await db.query(`create function ${schema}.once() returns trigger language plpgsql as $$ begin
    if new.status = 'QUEUED' and nextval('${schema}.tries') = 1 then raise exception 'deadlock' using errcode = '40P01'; end if;
    return new; end $$`);
  await db.query(`create trigger once before update on ${schema}.jobs for each row execute function ${schema}.once()`);
  onTestFinished(() => db.query(`drop function ${schema}.once() cascade`).then(() => {}));
  const finished = await finishAndTake([jobs[0]!], { outcome: { kind: 'requeue', reason: 'drained' } });
  expect(finished.accepted).toEqual(new Set([jobs[0]!.id]));
  expect(await reread(context, jobs[0]!)).toMatchObject({ status: 'QUEUED', laneHead: true, attempt: 0 });
  expect(await db.query(`select last_value::int as tries from ${schema}.tries`)).toEqual([{ tries: 2 }]);
});
