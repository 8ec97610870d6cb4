// Outcomes that Postgres refuses: each is refused by itself, and a job whose end cannot be written at all
// is left to its lease, which runs out.
import { v7 as uuidv7 } from 'uuid';
import { expect, onTestFinished, test } from 'vitest';
import type { FinishedAttempt, Outcome } from '../../../../server/jobs/finish/outcome.ts';
import { findExpiredLeases, recoverLease } from '../../../../server/jobs/finish/recover.ts';
import type { Job } from '../../../../server/jobs/model/job.ts';
import { createLogger } from '../../../../server/kernel/logger.ts';
import { defineJob } from '../../../../server/worker/handlers/define-job.ts';
import { startDaemon } from '../../../support/daemon/daemon.ts';
import { OutcomePump, type PumpOptions } from '../../../support/daemon/outcome-pump.ts';
import { eventually } from '../../../support/eventually.ts';
import { addJob, addJobs, claim, eventTypes, expireLease, finish, reread } from '../../../support/jobs.ts';
import { checkInvariants } from '../../../support/model/invariants.ts';
import { addTenant, lockWaiters, removeTenant, staysOpen, useTenant } from '../../../support/postgres/database.ts';

const context = useTenant();
const firstId = '00000000-0000-0000-0000-000000000000';
const sweep = { actor: 'sweeper:test', graceSeconds: 0, tokenLimit: 0 };
/** What Postgres refuses to store from now on, until the test ends or lifts it. */
async function refuse(what: string): Promise<() => Promise<void>> {
  const { db, schema } = context;
  const lift = async () => void (await db.query(`alter table ${schema}.jobs drop constraint if exists refused`));
  onTestFinished(lift);
  await db.query(`alter table ${schema}.jobs add constraint refused check (not coalesce(${what}, false)) not valid`);
  return lift;
}

const badResult = `result = '"bad"'::jsonb`;
const anyEndOf = (type: string) => `type = '${type}' and status in ('SUCCESS', 'ERROR')`;

interface Written {
  pump: OutcomePump;
  /** Job ids, in the order they were reported; those of outcomes that were not accepted begin with `-`. */
  reported: string[];
  /** Called while a batch is written. */
  meanwhile: (() => void)[];
}

function createPump(): Written {
  const reported: string[] = [];
  const meanwhile: (() => void)[] = [];
  return { pump: new OutcomePump(pumpOptions(reported, meanwhile)), reported, meanwhile };
}

function pumpOptions(reported: string[], meanwhile: (() => void)[]): PumpOptions {
  return {
    db: context.db,
    schema: context.schema,
    actor: 'worker:w1',
    logger: createLogger('silent'),
    trustedForMs: () => 60_000,
    nextClaim: () => {
      meanwhile.shift()?.();
      return undefined;
    },
    onFinished: ({ jobId }, isAccepted) => void reported.push(`${isAccepted ? '' : '-'}${jobId}`),
  };
}

function ending(job: Job, outcome: Outcome): FinishedAttempt {
  return { jobId: job.id, leaseId: job.leaseId as string, targetId: job.targetId, outcome };
}

const complete = (result: unknown): Outcome => ({ kind: 'complete', result });

async function leaseIsLeft(leaseId: string): Promise<boolean> {
  const rows = await context.db.query(`select 1 from ${context.schema}.leases where id = $1 and state = 'ACTIVE'`, [
    leaseId,
  ]);
  return rows.length === 1;
}

test.each([
  ['of jobs without targets', undefined],
  ['of lanes', 'lane'],
])('a refused outcome does not fail the others of its batch: %s', async (_what, lane) => {
  await refuse(badResult);
  const added = await addJobs(
    context,
    [0, 1, 2, 3].map((n) => (lane === undefined ? {} : { targetId: `${lane}-${n}` })),
  );
  const { jobs } = await claim(context);
  const { pump, reported } = createPump();
  for (const [n, job] of jobs.entries()) pump.add(ending(job, complete(n === 1 ? 'bad' : n)), n === 3);
  await pump.idle();
  expect(reported).toEqual(jobs.map((job) => job.id));
  for (const [n, job] of added.entries()) {
    const expected =
      n === 1 ? { status: 'ERROR', error: { code: 'RESULT_REFUSED' }, result: null } : { status: 'SUCCESS', result: n };
    expect(await reread(context, job)).toMatchObject(expected);
  }
  expect((await reread(context, added[1]!)).error?.message).toContain('23514');
});

test('a retry and a pause that are refused become errors too', async () => {
  await refuse(`error ->> 'message' = 'bad'`);
  const added = await addJobs(context, [{ maxAttempts: 2 }, {}, {}]);
  const { jobs } = await claim(context);
  const { pump } = createPump();
  pump.add(ending(jobs[0]!, { kind: 'retry', error: { code: 'X', message: 'bad' }, delayMs: 0 }), false);
  pump.add(ending(jobs[1]!, { kind: 'stopPaused', message: 'bad' }), false);
  pump.add(ending(jobs[2]!, complete('good')), true);
  await pump.idle();
  for (const job of added.slice(0, 2)) {
    expect(await reread(context, job)).toMatchObject({ status: 'ERROR', error: { code: 'RESULT_REFUSED' } });
  }
  expect(await reread(context, added[2]!)).toMatchObject({ status: 'SUCCESS', result: 'good' });
});

test('outcomes of a tenant that was deleted are dropped with one line', async () => {
  const gone = await addTenant(context.db, 'gone');
  const there = { ...context, ...gone };
  await addJobs(there, [{ targetId: 'a' }, { targetId: 'b' }, { targetId: 'c' }]);
  const { jobs } = await claim(there, { limit: 3 });
  await removeTenant(context.db, 'gone');
  const lines: string[] = [];
  const log = (level: string) => (_fields: object, text: string) => void lines.push(`${level}: ${text}`);
  const logger = Object.assign(createLogger('silent'), { warn: log('warn'), error: log('error') });
  const reported: string[] = [];
  const pump = new OutcomePump({ ...pumpOptions(reported, []), schema: gone.schema, logger });
  for (const [n, job] of jobs.entries()) pump.add(ending(job, complete(n)), n === 2);
  await pump.idle();
  expect(reported).toEqual(jobs.map(({ id }) => `-${id}`));
  expect(lines).toEqual(['warn: outcomes cannot be written: the tables of the tenant do not exist']);
});

// When the last job of the lease comes in, relative to the write that is refused.
test.each(['with it', 'while it is written', 'after it'])(
  'a job whose outcome cannot be written keeps its lease, which expires: the last job of the lease ends %s',
  async (when) => {
    const lift = await refuse(anyEndOf('cursed'));
    const [cursed, other] = await addJobs(context, [{ type: 'cursed', maxAttempts: 2, targetId: 'cursed' }, {}]);
    const { jobs, leaseId } = await claim(context);
    const { pump, reported, meanwhile } = createPump();
    const held = jobs.find((job) => job.id === cursed!.id)!;
    const last = jobs.find((job) => job.id === other!.id)!;
    const endLast = () => pump.add(ending(last, complete(1)), true);
    if (when === 'while it is written') meanwhile.push(endLast);
    pump.add(ending(held, complete(1)), false);
    if (when === 'with it') endLast();
    await pump.idle();
    if (when === 'after it') endLast();
    await pump.idle();
    expect(reported.sort()).toEqual([`-${held.id}`, last.id].sort());
    expect(await reread(context, other!)).toMatchObject({ status: 'SUCCESS' });
    expect(await reread(context, cursed!)).toMatchObject({ status: 'RUNNING', leaseId });
    expect(await leaseIsLeft(leaseId)).toBe(true);
    await lift();
    await expireLease(context, leaseId);
    const expired = await findExpiredLeases(context.db, context.schema, 0, firstId, 100);
    const lease = expired.find(({ id }) => id === leaseId);
    expect(await recoverLease(context.db, context.schema, lease!, sweep)).toEqual({ jobs: 1, failed: 0 });
    expect(await reread(context, cursed!)).toMatchObject({ status: 'QUEUED', attempt: 1 });
    const again = await claim(context);
    pump.add(ending(again.jobs[0]!, complete(2)), true);
    await pump.idle();
    expect(await reread(context, cursed!)).toMatchObject({ status: 'SUCCESS', result: 2, attempt: 2 });
    // A lease of which everything was written ends as usual.
    expect(await leaseIsLeft(again.leaseId)).toBe(false);
    await checkInvariants(context);
  },
);

test.each([
  ['lanes are written over three connections at once', 'busy', 3],
  ['others over two', undefined, 2],
])('many outcomes are written with %s', async (_what, targetId, connections) => {
  const { db, schema } = context;
  const added = await addJobs(
    context,
    [1, 2, 3].map((n) => ({ targetId: targetId && `${targetId}-${n}` })),
  );
  const reported: string[] = [];
  const pump = new OutcomePump(pumpOptions(reported, []));
  await db.transaction(async (tx) => {
    const claims = [];
    for (const _ of added) claims.push(await claim(context, { limit: 1 }));
    await tx.query(`select id from ${schema}.jobs where id = any($1) for update`, [added.map((job) => job.id)]);
    for (const { jobs, leaseId } of claims) {
      // More than one connection is used for a hundred and more.
      const lost = Array.from({ length: 100 }, () => ({
        jobId: uuidv7(),
        leaseId,
        targetId: jobs[0]!.targetId,
        outcome: complete(null),
      }));
      for (const item of lost) pump.add(item, false);
      pump.add(ending(jobs[0]!, complete(1)), true);
    }
    await eventually(async () => expect(await db.query(lockWaiters(schema))).toHaveLength(connections));
    expect(pump.pending).toBe((3 - connections) * 101);
  }, staysOpen);
  await pump.idle();
  expect(reported.filter((id) => !id.startsWith('-')).sort()).toEqual(added.map((job) => job.id).sort());
});

test('the queues are idle only after a job that one of them claimed was requeued through another', async () => {
  const { db, schema } = context;
  const [, next] = await addJobs(context, [{ targetId: 'two' }, { targetId: 'two' }]);
  const { jobs } = await claim(context);
  const reported: string[] = [];
  const pump: OutcomePump = new OutcomePump({
    ...pumpOptions(reported, []),
    nextClaim: () => ({ owner: 'w1', limit: 1, leaseSeconds: 60, leaseId: uuidv7() }),
    // As when a drain has begun meanwhile.
    onClaimed: ({ jobs: taken }) => {
      for (const job of taken) pump.add(ending(job, { kind: 'requeue', reason: 'drained' }), true);
    },
  });
  let idle: Promise<void> | undefined;
  await db.transaction(async (tx) => {
    // The second queue waits for this lock; the first has enough to do to need it, and ends before it.
    await tx.query(`select id from ${schema}.targets where id = 'two' for update`);
    const leaseId = uuidv7();
    const lost = Array.from({ length: 100 }, () => ({
      jobId: uuidv7(),
      leaseId,
      targetId: null,
      outcome: complete(null),
    }));
    for (const [n, item] of lost.entries()) pump.add(item, n === 99);
    pump.add(ending(jobs[0]!, complete(1)), true);
    await eventually(() => expect(reported).toHaveLength(100));
    idle = pump.idle();
  }, staysOpen);
  await idle;
  expect(await reread(context, next!)).toMatchObject({
    status: 'QUEUED',
    attempt: 0,
    laneHead: true,
    leaseOwner: null,
  });
  expect(await eventTypes(context, next!)).toEqual(['job.enqueued', 'job.started', 'job.requeued']);
  await finish(context, (await claim(context)).jobs[0]!);
});

test('a daemon that cannot write an outcome leaves the job to the sweeper, and it runs again', async () => {
  const lift = await refuse(anyEndOf('unwritable'));
  let proceed = () => {};
  const lifted = new Promise<void>((resolve) => {
    proceed = resolve;
  });
  const unwritable = defineJob({
    type: 'unwritable',
    async run({ job }) {
      if (job.attempt > 1) await lifted;
      return job.attempt;
    },
  });
  await startDaemon(context, { handlers: [unwritable] });
  const job = await addJob(context, { type: 'unwritable', targetId: 'unwritable', maxAttempts: 100 });
  const next = await addJob(context, { targetId: 'unwritable' });
  await eventually(async () => expect(await reread(context, job)).toMatchObject({ attempt: 2 }));
  expect(await eventTypes(context, job)).toEqual(['job.enqueued', 'job.started', 'job.lease_expired', 'job.started']);
  await lift();
  proceed();
  await eventually(async () => expect((await reread(context, next)).status).toBe('SUCCESS'));
  expect(await reread(context, job)).toMatchObject({ status: 'SUCCESS', result: 2, attempt: 2 });
  await checkInvariants(context);
});

test('an outcome that is written again after a lost connection still claims the next job of its lane', async () => {
  const { db, schema } = context;
  const [first, next] = await addJobs(context, [{ targetId: 'again' }, { targetId: 'again' }]);
  const { jobs } = await claim(context);
  const reported: string[] = [];
  const taken: Job[] = [];
  const pump = new OutcomePump({
    ...pumpOptions(reported, []),
    nextClaim: () => ({ owner: 'w1', limit: 1, leaseSeconds: 60, leaseId: uuidv7() }),
    onClaimed: (claimed) => void taken.push(...claimed.jobs),
  });
  await db.transaction(async (tx) => {
    await tx.query(`select id from ${schema}.targets where id = 'again' for update`);
    pump.add(ending(jobs[0]!, complete(1)), true);
    const end = `select pg_terminate_backend(pid) from (${lockWaiters(schema)}) as waiting`;
    await eventually(async () => expect(await db.query(end)).toHaveLength(1));
  }, staysOpen);
  await pump.idle();
  expect(reported).toEqual([first!.id]);
  expect(taken.map((job) => job.id)).toEqual([next!.id]);
  expect(await reread(context, next!)).toMatchObject({ status: 'RUNNING', leaseId: taken[0]!.leaseId, attempt: 1 });
  await checkInvariants(context);
  await finish(context, taken[0]!);
});
