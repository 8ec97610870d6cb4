// Jobs that are owned without an active lease: an older daemon or a hand in the database may leave them behind. They
// are named, found by the next sweep, and end like those of any lease that runs out.

import { expect, test } from 'vitest';
import { explainJob } from '../../../server/explain/explain-job.ts';
import { claimRemoteJobs } from '../../../server/jobs/claim/claim.ts';
import { CommitSignals } from '../../../server/jobs/commit-signals.ts';
import { repairOrphans } from '../../../server/jobs/finish/due-jobs.ts';
import type { Job } from '../../../server/jobs/model/job.ts';
import type { Status } from '../../../server/jobs/model/states.ts';
import { createLogger } from '../../../server/kernel/logger.ts';
import { probeTenants } from '../../../server/maintenance/probes.ts';
import { Sweeper, type SweeperOptions } from '../../../server/maintenance/sweeper.ts';
import type { PolledTask } from '../../../server/maintenance/tenant-poller.ts';
import { reportStatus } from '../../../server/scheduler/report-status.ts';
import { requestLease } from '../../../server/scheduler/request-lease.ts';
import { rollUpNow } from '../../../server/stats/roll-up.ts';
import type { Tenant } from '../../../server/tenants/tenant.ts';
import { verifyTenant } from '../../../server/verify/verify-tenant.ts';
import { startDaemon } from '../../support/daemon/daemon.ts';
import { eventually } from '../../support/eventually.ts';
import { after } from '../../support/flows.ts';
import { addJob, claim, eventTypes, finish, reread } from '../../support/jobs.ts';
import { loseLease } from '../../support/lose-lease.ts';
import { checkInvariants } from '../../support/model/invariants.ts';
import { addTenant, useTenant } from '../../support/postgres/database.ts';
import { createTasks } from '../../support/tasks.ts';

const context = useTenant();
const firstId = '00000000-0000-0000-0000-000000000000';
const long = 3600;

async function own(status: Status, queue: string, maxAttempts = 2): Promise<Job> {
  const { db, schema } = context;
  const remote = queue.startsWith('remote');
  const job = await addJob(context, { remote, queue, targetId: queue, maxAttempts });
  if (!remote) await claim(context, { leaseSeconds: long, owner: 'gone' });
  else {
    await claimRemoteJobs(db, schema, { owner: 'gone', limit: 1, leaseSeconds: long, queue });
    if (status === 'PREPARING' || status === 'LEASE_PENDING') {
      await reportStatus(db, schema, { jobId: job.id, state: status, claimSeconds: long });
    }
    if (status === 'RUNNING') {
      await requestLease(db, schema, { jobId: job.id, workerId: 'gone', ttlSeconds: long, claimSeconds: long });
    }
  }
  const owned = await reread(context, job);
  expect(owned.status).toBe(status);
  return owned;
}

const lose = (job: Job, how: 'deleted' | 'ended') => loseLease(context, job.leaseId, how);

async function leaseOf(job: Job): Promise<unknown> {
  const [row] = await context.db.query(
    `select kind, state, owner, job_ids, queue, cost_units, expires_at > now() as live from ${context.schema}.leases where id = $1`,
    [job.leaseId],
  );
  return row;
}

const cases: [Status, string, 'local' | 'claim' | 'remote'][] = [
  ['RUNNING', 'local', 'local'],
  ['RUNNING', 'remote-running', 'remote'],
  ['CLAIMED', 'remote-claimed', 'claim'],
  ['PREPARING', 'remote-preparing', 'claim'],
  ['LEASE_PENDING', 'remote-pending', 'claim'],
];

test.each(cases)(
  'verify and why name a %s job (%s) without its lease, and the sweeper opens it again',
  async (status, queue, kind) => {
    const { db, schema, tenant } = context;
    const job = await own(status, queue);
    const next = await addJob(context, { targetId: queue });
    const view = {
      tenant,
      daemons: [],
      capacities: [],
      tenantConcurrency: 1,
      workerConcurrency: 1,
      questionTimeoutSeconds: 1,
    };
    const why = async (one: Job) => explainJob(db, await reread(context, one), view as never);
    await lose(job, 'deleted');
    expect((await verifyTenant(db, schema)).violations).toEqual([
      expect.objectContaining({
        kind: 'job_lease',
        jobId: job.id,
        detail: expect.stringContaining(`is ${status} under lease`),
      }),
    ]);
    expect(await why(job)).toMatchObject({ running: false, reasons: [{ code: 'NO_LEASE' }] });
    const behind = (await why(next)).reasons.find((reason) => reason.code === 'BEHIND_JOB');
    expect(behind).toMatchObject({ jobId: job.id, detail: expect.stringContaining('it has no lease') });

    const scan = await repairOrphans(db, schema, {
      actor: 'sweeper:x',
      afterSeconds: 7200,
      leaseSeconds: 15,
      from: firstId,
    });
    expect(scan).toEqual({ queued: 0, orphans: 0, reopened: [job.leaseId], next: undefined });
    expect(await leaseOf(job)).toEqual({
      kind,
      state: 'ACTIVE',
      owner: 'gone',
      job_ids: [job.id],
      queue: kind === 'local' ? null : queue,
      cost_units: kind === 'local' ? 0 : 1,
      live: true,
    });
    expect((await verifyTenant(db, schema)).violations).toEqual([]);
    const again = await repairOrphans(db, schema, {
      actor: 'sweeper:x',
      afterSeconds: 7200,
      leaseSeconds: 15,
      from: firstId,
    });
    expect(again.reopened).toEqual([]);
    await checkInvariants(context);
  },
);

test.each(cases)('the lease of a %s job (%s) can neither end nor be deleted', async (status, queue) => {
  const { db, schema } = context;
  const job = await own(status, `${queue}-refused`);
  const end = `update ${schema}.leases set state = 'RELEASED', released_at = now() where id = $1`;
  const refused = expect.objectContaining({ code: 'LH007', message: expect.stringContaining(job.id) });
  await expect(db.query(end, [job.leaseId])).rejects.toEqual(refused);
  await expect(db.query(`delete from ${schema}.leases where id = $1`, [job.leaseId])).rejects.toEqual(refused);
  // Within a transaction the end of the job may come after that of the lease.
  const leave = db.transaction(async (tx) => {
    await tx.query(end, [job.leaseId]);
    await tx.query(`update ${schema}.leases set state = 'ACTIVE', released_at = null where id = $1`, [job.leaseId]);
  });
  await leave;
  expect(await leaseOf(job)).toMatchObject({ state: 'ACTIVE' });
});

test('a lease that ended while its job still runs is opened again as expired', async () => {
  const { db, schema } = context;
  const job = await own('RUNNING', 'ended');
  await lose(job, 'ended');
  const scan = await repairOrphans(db, schema, {
    actor: 'sweeper:x',
    afterSeconds: 7200,
    leaseSeconds: 15,
    from: firstId,
  });
  expect(scan.reopened).toEqual([job.leaseId]);
  expect(await leaseOf(job)).toMatchObject({ state: 'ACTIVE', live: false });
});

test('a tenant without new events is scanned once, however many jobs wait in it', async () => {
  const { db } = context;
  const { schema, tenant } = await addTenant(db);
  await db.query(
    `insert into ${schema}.jobs (id, status, type, payload, lane_head, attempt, held_since, run_at, waiting)
     select gen_random_uuid(), 'WAITING', 'crowd', '{}', true, 1, now(), now() + interval '1 day',
            '{"kind": "sleep", "step": "nap"}'
       from generate_series(1, 12000)`,
  );
  const sent: string[] = [];
  const view = db.forTenant(schema);
  const recording = {
    query(text: string, values?: unknown[]) {
      sent.push(text);
      return view.query(text, values);
    },
    transaction(work: never) {
      sent.push('begin');
      return view.transaction(work);
    },
    forTenant: () => recording,
  } as unknown as typeof db;
  const sweeper = createSweeper(tenant, { db: recording });
  await sweeper.sweep([{ tenant, results: {}, hasNewEvents: true }]);
  // Three slices of 5,000 jobs, and the lanes. Sleepers wait for no other job, so no edges are read.
  expect(sent.filter((text) => text.includes('as dependents'))).toHaveLength(3);
  expect(sent).not.toContain('begin');
  sent.length = 0;
  for (let n = 0; n < 3; n++) await sweeper.sweep([{ tenant, results: {}, hasNewEvents: false }]);
  expect(sent).toEqual([]);
  await sweeper.sweep([{ tenant, results: {}, hasNewEvents: true }]);
  expect(sent.length).toBeGreaterThan(0);
});

test('the next sweep finds a job without a lease in a tenant without new events, and does not scan without a reason', async () => {
  const { db } = context;
  const other = { ...context, ...(await addTenant(db)) };
  const { schema, tenant } = other;
  await addJob(other);
  const { leaseId } = await claim(other, { leaseSeconds: long, owner: 'gone' });
  await rollUpNow(db, schema);
  let scans = 0;
  const sweeper = createSweeper(tenant, {
    observe: (_tenant, kind) => {
      if (kind === 'orphans') scans += 1;
    },
  });
  const { polled } = createTasks(db, [tenant]);
  const { probes } = polled.find(({ name }) => name === 'sweep') as PolledTask;
  const sweep = async () => {
    const { found } = await probeTenants(db, [tenant], probes);
    await sweeper.sweep(found.map((one) => ({ ...one, hasNewEvents: false })));
  };
  await sweep();
  await sweep();
  expect(scans).toBe(1);
  await loseLease(other, leaseId);
  await sweep();
  expect(await db.query(`select id, state from ${schema}.leases`)).toEqual([{ id: leaseId, state: 'ACTIVE' }]);
  await sweep();
  expect(scans).toBe(2);
  // Counts that are wrong lead to one scan.
  await db.query(`update ${schema}.stat_minutes set deltas = deltas || '{"RUNNING": 3}' where minute = '-infinity'`);
  await sweep();
  await sweep();
  expect(scans).toBe(3);
});

test('a tenant whose leases are gone is scanned before tenants that wait for a routine scan', async () => {
  const { db } = context;
  const others = await Promise.all(Array.from({ length: 6 }, () => addTenant(db)));
  const lost = { ...context, ...(await addTenant(db)) };
  const tenants = [...others, lost].map(({ tenant }) => tenant);
  const scanned: string[] = [];
  const observe = (tenant: Tenant, kind: string) => void (kind === 'orphans' && scanned.push(tenant.slug));
  const sweeper = createSweeper(lost.tenant, { observe, daemons: () => 4, registry: { list: () => tenants } as never });
  // Four daemons: each scans one tenant per sweep.
  await sweeper.sweep(tenants.map((tenant) => ({ tenant, results: {}, hasNewEvents: true })));
  expect(scanned).toEqual([tenants[0]?.slug]);
  await sweeper.sweep([{ tenant: lost.tenant, results: { unleased: 1 }, hasNewEvents: false }]);
  expect(scanned.slice(1)).toEqual([lost.tenant.slug, tenants[1]?.slug]);
});

test('one sweep reads tens of thousands of jobs', async () => {
  const { db } = context;
  const other = { ...context, ...(await addTenant(db)) };
  const { schema, tenant } = other;
  await db.query(
    `insert into ${schema}.jobs (id, status, type, payload, lane_head, finished_at)
     select gen_random_uuid(), 'SUCCESS', 'filler', '{}', true, now() from generate_series(1, 12000)`,
  );
  const { id } = await addJob(other);
  await claim(other, { leaseSeconds: long, owner: 'gone' });
  const { leaseId } = await reread(other, { id });
  // Behind all others.
  const last = 'ffffffff-ffff-7fff-bfff-ffffffffffff';
  await loseLease(other, leaseId);
  await db.query(`update ${schema}.jobs set id = $2 where id = $1`, [id, last]);
  const sweeper = createSweeper(tenant);
  await sweeper.sweep([{ tenant, results: {}, hasNewEvents: false }]);
  const leases = await db.query(`select id, state, job_ids from ${schema}.leases`);
  expect(leases).toEqual([{ id: leaseId, state: 'ACTIVE', job_ids: [last] }]);
});

test('jobs that a scan queues before their follower are announced to the workers', async () => {
  const { db } = context;
  const other = { ...context, ...(await addTenant(db)) };
  const first = await addJob(other);
  const next = await addJob(other, { after: [after(first)] });
  await finish(other, (await claim(other)).jobs[0] as Job);
  const signals = new CommitSignals();
  const announced: string[] = [];
  signals.onWorkAvailable(({ slug }) => announced.push(slug));
  const { tenant } = other;
  await createSweeper(tenant, { signals }).sweep([{ tenant, results: {}, hasNewEvents: true }]);
  expect((await reread(other, next)).status).toBe('QUEUED');
  expect(announced).toEqual([tenant.slug]);
});

test('the first sweeps of a daemon do not scan, so that they do not delay its first claims', async () => {
  const { db } = context;
  const other = { ...context, ...(await addTenant(db)) };
  const { schema, tenant } = other;
  await addJob(other);
  const { leaseId } = await claim(other, { leaseSeconds: long, owner: 'gone' });
  await loseLease(other, leaseId);
  const found = [{ tenant, results: {}, hasNewEvents: false }];
  await createSweeper(tenant, { repairDelayMs: 3_600_000 }).sweep(found);
  expect(await db.query(`select id from ${schema}.leases`)).toEqual([]);
  await createSweeper(tenant, { repairDelayMs: 0 }).sweep(found);
  expect(await db.query(`select id from ${schema}.leases`)).toEqual([{ id: leaseId }]);
});

test('a daemon finds and recovers such jobs, and respects their attempts', async () => {
  const retried = await own('RUNNING', 'sweep-retried');
  const failed = await own('RUNNING', 'sweep-failed', 1);
  const ended = await own('RUNNING', 'sweep-ended');
  const claimed = await own('CLAIMED', 'remote-sweep');
  for (const job of [retried, failed, claimed]) await lose(job, 'deleted');
  await lose(ended, 'ended');
  await startDaemon(context);
  await eventually(async () => {
    expect(await reread(context, retried)).toMatchObject({ status: 'SUCCESS', attempt: 2 });
    expect(await reread(context, ended)).toMatchObject({ status: 'SUCCESS', attempt: 2 });
    expect(await reread(context, failed)).toMatchObject({ status: 'ERROR', error: { code: 'LEASE_EXPIRED' } });
    expect(await reread(context, claimed)).toMatchObject({ status: 'QUEUED', attempt: 0 });
  });
  expect((await eventTypes(context, retried)).slice(0, 4)).toEqual([
    'job.enqueued',
    'job.started',
    'job.lease_expired',
    'job.started',
  ]);
  expect((await verifyTenant(context.db, context.schema)).violations).toEqual([]);
  await checkInvariants(context);
});

function createSweeper(tenant: Tenant, options: Partial<SweeperOptions> = {}): Sweeper {
  const nobody = () => {};
  return new Sweeper({
    db: context.db,
    registry: { list: () => [tenant] } as never,
    logger: createLogger('silent'),
    actor: 'sweeper:x',
    staleLeaseGraceSeconds: 0,
    orphanAfterSeconds: 7200,
    leaseSeconds: 15,
    timeoutSeconds: 0,
    tokenLimit: 0,
    signals: new CommitSignals(),
    observe: nobody,
    ...options,
  });
}
