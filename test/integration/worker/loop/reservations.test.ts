// A job that starts with the commit that brings it: only where a slot is free and nothing waits, under a
// lease like any other, and never in front of those who came before.
import { afterEach, expect, test } from 'vitest';
import { enqueue, type NewJob } from '../../../../server/jobs/enqueue/enqueue.ts';
import type { Reservation } from '../../../../server/jobs/enqueue/insert-jobs.ts';
import type { Job } from '../../../../server/jobs/model/job.ts';
import { defineJob } from '../../../../server/worker/handlers/define-job.ts';
import { startDaemon } from '../../../support/daemon/daemon.ts';
import { eventually } from '../../../support/eventually.ts';
import { addJobs, eventTypes, finish, reread } from '../../../support/jobs.ts';
import { checkInvariants } from '../../../support/model/invariants.ts';
import { citusCluster } from '../../../support/postgres/citus.ts';
import { lockWaiters, staysOpen, useTenantPerTest } from '../../../support/postgres/database.ts';

const context = useTenantPerTest();
afterEach(() => checkInvariants(context));

const leaseId = () => crypto.randomUUID();

function createReservation(lease = leaseId()) {
  const recorded: { started: Job[]; failed: unknown[] } = { started: [], failed: [] };
  const reservation: Reservation = {
    leaseId: lease,
    owner: 'w1',
    leaseSeconds: 15,
    started: (jobs) => recorded.started.push(...jobs),
    failed: (error) => recorded.failed.push(error),
  };
  return { reservation, recorded };
}

const echo = (given: Partial<NewJob> = {}): NewJob => ({ type: 'demo.echo', payload: {}, ...given });

test('a job is enqueued and started in one transaction, with its lease and both events', async () => {
  const { db, schema } = context;
  const { reservation, recorded } = createReservation();
  const given = [echo({ payload: { at: new Date(0) }, maxAttempts: 3, author: 'ann' }), echo({ priority: 'HIGH' })];
  const enqueued = await enqueue(db, schema, given, 'test', { reserve: () => reservation });

  expect(enqueued).toMatchObject([
    { kind: 'created', started: true, job: { status: 'QUEUED', attempt: 0, leaseId: null } },
    { kind: 'created', started: true, job: { status: 'QUEUED' } },
  ]);
  expect(recorded.started.map((job) => job.id)).toEqual(enqueued.map(({ job }) => job.id));
  for (const job of recorded.started) {
    const stored = await reread(context, job);
    expect(stored).toMatchObject({ status: 'RUNNING', attempt: 1, leaseId: reservation.leaseId, leaseOwner: 'w1' });
    expect(stored.startedAt).toBe(stored.createdAt);
    // What the handler is given is what is stored.
    expect(job).toMatchObject({
      status: 'RUNNING',
      attempt: 1,
      leaseId: reservation.leaseId,
      payload: stored.payload,
      maxAttempts: stored.maxAttempts,
      author: stored.author,
      startedAt: stored.startedAt,
    });
    const events = await db.query(
      `select type, from_status, to_status, attempt, lease_id, actor, xid = min(xid) over () as together
         from ${schema}.events where job_id = $1 order by seq`,
      [job.id],
    );
    expect(events).toEqual([
      {
        type: 'job.enqueued',
        from_status: null,
        to_status: 'QUEUED',
        attempt: 0,
        lease_id: null,
        actor: 'test',
        together: true,
      },
      {
        type: 'job.started',
        from_status: 'QUEUED',
        to_status: 'RUNNING',
        attempt: 1,
        lease_id: reservation.leaseId,
        actor: 'worker:w1',
        together: true,
      },
    ]);
  }
  expect(await reread(context, recorded.started[0]!)).toMatchObject({ payload: { at: '1970-01-01T00:00:00.000Z' } });
  const leases = await db.query(`select kind, owner, job_ids from ${schema}.leases where id = $1`, [
    reservation.leaseId,
  ]);
  expect(leases).toEqual([{ kind: 'local', owner: 'w1', job_ids: recorded.started.map((job) => job.id) }]);
  for (const job of recorded.started) expect((await finish(context, job)).accepted.size).toBe(1);
});

test.each<[string, Partial<NewJob>]>([
  ['a time', { runAt: '2020-01-01T00:00:00Z' }],
  ['a target and a time', { targetId: 'lane', runAt: '2020-01-01T00:00:00Z' }],
  ['phases', { phases: ['one'] }],
])('a job with %s is enqueued without a start', async (_what, given) => {
  const reserve = () => {
    throw new Error('nobody asked for a slot');
  };
  const [enqueued] = await enqueue(context.db, context.schema, [echo(given)], 'test', { reserve });
  expect(await reread(context, enqueued!.job)).toMatchObject({ status: 'QUEUED', attempt: 0 });
});

test.each<[string, Partial<NewJob>]>([
  ['an idempotency key', { clientRequestId: 'once' }],
  ['a target and an idempotency key', { targetId: 'lane', clientRequestId: 'once' }],
])('a job with %s starts with its insert, and a repeated request starts nothing', async (_what, given) => {
  const [first, again] = [createReservation(), createReservation()];
  const send = ({ reservation }: typeof first) =>
    enqueue(context.db, context.schema, [echo(given)], 'test', { reserve: () => reservation });
  const [created] = await send(first);
  expect(created).toMatchObject({ kind: 'created', started: true });
  expect(first.recorded.started.map(({ id }) => id)).toEqual([created!.job.id]);
  const [replayed] = await send(again);
  expect(replayed).toMatchObject({ kind: 'replayed', job: { id: created!.job.id, status: 'RUNNING' } });
  expect(again.recorded).toEqual({ started: [], failed: [] });
  expect(await eventTypes(context, created!.job)).toEqual(['job.enqueued', 'job.started']);
  const { leaseId: unused } = again.reservation;
  expect(await context.db.query(`select id from ${context.schema}.leases where id = $1`, [unused])).toEqual([]);
  await finish(context, first.recorded.started[0]!);
});

test('a refused insert leaves nothing behind and releases the slots', async () => {
  const { db, schema } = context;
  const { reservation, recorded } = createReservation();
  const bad = [echo(), echo({ maxAttempts: 0 })];
  await expect(enqueue(db, schema, bad, 'test', { reserve: () => reservation })).rejects.toThrow(/check constraint/);
  expect(recorded).toMatchObject({ started: [], failed: [expect.anything()] });
  expect(await db.query(`select id from ${schema}.leases where id = $1`, [reservation.leaseId])).toEqual([]);
});

async function startedTogether(job: Pick<Job, 'id'>): Promise<boolean> {
  const [row] = await context.db.query<{ n: number }>(
    `select count(distinct xid)::int as n from ${context.schema}.events
      where job_id = $1 and type in ('job.enqueued', 'job.started')`,
    [job.id],
  );
  return row?.n === 1;
}

/** A handler that notes which jobs began, and ends when the test says so. */
function createGate(type: string) {
  const begun: string[] = [];
  const open: (() => void)[] = [];
  const gated = defineJob({
    type,
    async run({ job }) {
      begun.push(job.id);
      await new Promise<void>((resolve) => open.push(resolve));
    },
  });
  return { gated, begun, open };
}

const untilDone = (jobs: Pick<Job, 'id'>[]) =>
  eventually(async () => {
    for (const job of jobs) expect(await reread(context, job)).toMatchObject({ status: 'SUCCESS', attempt: 1 });
  });

test('an idle daemon starts new jobs at once, and those without a slot wait', async () => {
  const { gated, begun, open } = createGate('gated');
  const env = { WORKER_CONCURRENCY: '1', TENANT_CONCURRENCY: '1', LEASE_SECONDS: '10' };
  const daemon = await startDaemon(context, { handlers: [gated], env });
  const add = async (): Promise<Job> => {
    const [enqueued] = await daemon.enqueue(context.tenant, [{ type: 'gated', payload: {} }], 'test');
    return enqueued!.job;
  };
  // Before the loop's first claim is answered it does not know that nothing waits.
  const first = await add();
  await eventually(() => expect(begun).toEqual([first.id]));
  const second = await add();
  const third = await add();
  expect(await reread(context, second)).toMatchObject({ status: 'QUEUED' });
  open.shift()?.();
  await eventually(() => expect(begun).toEqual([first.id, second.id]));
  // A slot came free and went to the one that waited; a new one does not overtake the third.
  const fourth = await add();
  open.shift()?.();
  await eventually(() => expect(begun.length).toBe(3));
  expect(begun[2]).toBe(third.id);
  open.shift()?.();
  await eventually(() => expect(begun).toEqual([first.id, second.id, third.id, fourth.id]));
  open.shift()?.();
  await untilDone([first, second, third, fourth]);
  for (const job of [second, third]) expect(await startedTogether(job)).toBe(false);

  // Idle again: in one transaction, and the history reads as ever.
  await eventually(async () => {
    const job = await add();
    await eventually(() => expect(begun).toContain(job.id));
    open.shift()?.();
    await untilDone([job]);
    expect(await eventTypes(context, job)).toEqual(['job.enqueued', 'job.started', 'job.completed']);
    expect(await startedTogether(job)).toBe(true);
  });
});

/** Until the daemon has found out that nothing waits. */
const untilAtOnce = (daemon: Awaited<ReturnType<typeof startDaemon>>) =>
  eventually(async () => {
    const [enqueued] = await daemon.enqueue(context.tenant, [echo()], 'test');
    await untilDone([enqueued!.job]);
    expect(await startedTogether(enqueued!.job)).toBe(true);
  });

test('the caller has its answer before the handler of a job that starts at once', async () => {
  const order: string[] = [];
  const noted = defineJob({
    type: 'noted',
    run: () => {
      order.push('begun');
    },
  });
  const daemon = await startDaemon(context, { handlers: [noted] });
  await untilAtOnce(daemon);
  for (let round = 0; round < 5; round++) {
    order.length = 0;
    const [enqueued] = await daemon.enqueue(context.tenant, [{ type: 'noted', payload: {} }], 'test');
    order.push('answered');
    await untilDone([enqueued!.job]);
    expect(await startedTogether(enqueued!.job)).toBe(true);
    expect(order).toEqual(['answered', 'begun']);
  }
});

test('jobs that were being claimed when the drain began are requeued without counting the attempt', async () => {
  const { gated, begun } = createGate('stopped');
  const daemon = await startDaemon(context, { handlers: [gated] });
  await untilAtOnce(daemon);
  const { db, schema } = context;
  let release = () => {};
  const held = new Promise<void>((resolve) => {
    release = resolve;
  });
  // Nobody can write jobs until the test says so.
  let locked = false;
  const locking = db.transaction(async (tx) => {
    // Shards cannot be locked by name; a change of the table locks its shard.
    const lock = citusCluster() ? `alter table ${schema}.jobs add constraint held check (true)` : undefined;
    await tx.query(lock ?? `lock table ${schema}.jobs in exclusive mode`);
    locked = true;
    await held;
  }, staysOpen);
  await eventually(() => expect(locked).toBe(true));
  const adding = daemon.enqueue(context.tenant, [{ type: 'stopped', payload: {} }], 'test');
  await eventually(async () => expect(await db.query(lockWaiters(schema))).not.toEqual([]));
  let drained = false;
  const draining = daemon.workers.drain(0).then(() => {
    drained = true;
  });
  // Nothing runs, and yet it is not over.
  await db.query('select 1');
  expect(drained).toBe(false);
  release();
  await locking;
  const [enqueued] = await adding;
  await draining;
  expect(await reread(context, enqueued!.job)).toMatchObject({
    status: 'QUEUED',
    attempt: 0,
    leaseId: expect.anything(),
  });
  expect(begun).toEqual([]);
  expect(await db.query(`select id from ${schema}.leases where state = 'ACTIVE'`)).toEqual([]);
});

test('earlier waiting jobs are not overtaken', async () => {
  const { gated, begun, open } = createGate('patient');
  const older = await addJobs(context, [{ type: 'patient' }, { type: 'patient' }]);
  const env = { WORKER_CONCURRENCY: '1', TENANT_CONCURRENCY: '1', LEASE_SECONDS: '10' };
  const daemon = await startDaemon(context, { handlers: [gated], env });
  const [enqueued] = await daemon.enqueue(context.tenant, [{ type: 'patient', payload: {} }], 'test');
  const all = [...older, enqueued!.job];
  for (const count of [1, 2, 3]) {
    await eventually(() => expect(begun.length).toBe(count));
    open.shift()?.();
  }
  await untilDone(all);
  expect(begun).toEqual(all.map((job) => job.id));
});
