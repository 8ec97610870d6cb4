// Outcomes that are given up or lost: their jobs stay RUNNING, so their lease must not end with the other jobs of its
// claim. It runs out, and the sweeper recovers what is left of it.
import { expect, onTestFinished, test } from 'vitest';
import { Database } from '../../../../server/database/database.ts';
import { finishAttempts } from '../../../../server/jobs/finish/finish.ts';
import type { FinishedAttempt } from '../../../../server/jobs/finish/outcome.ts';
import { findExpiredLeases, recoverLease } from '../../../../server/jobs/finish/recover.ts';
import type { Job } from '../../../../server/jobs/model/job.ts';
import { createLogger } from '../../../../server/kernel/logger.ts';
import { defineJob } from '../../../../server/worker/handlers/define-job.ts';
import { startDaemon } from '../../../support/daemon/daemon.ts';
import { OutcomePump } from '../../../support/daemon/outcome-pump.ts';
import { eventually } from '../../../support/eventually.ts';
import { addJobs, claim, eventTypes, expireLease, finish, reread } from '../../../support/jobs.ts';
import { checkInvariants } from '../../../support/model/invariants.ts';
import { staysOpen, useTenant } from '../../../support/postgres/database.ts';
import { startDelayingProxy } from '../../../support/postgres/proxies/delaying-proxy.ts';
import { startProxy } from '../../../support/postgres/proxies/proxy.ts';

const context = useTenant();
async function stateOf(leaseId: string): Promise<unknown> {
  const [row] = await context.db.query(`select state from ${context.schema}.leases where id = $1`, [leaseId]);
  return row?.state;
}

function ending(job: Job): FinishedAttempt {
  const outcome = { kind: 'complete' as const, result: null };
  return { jobId: job.id, leaseId: job.leaseId as string, targetId: job.targetId, outcome };
}

const pumpSession = 'outcome-pump';

/** A pump over a connection of its own, whose leases are not trusted any more unless the test says so. */
function createPump(url: string) {
  const logger = createLogger('silent');
  const db = new Database({ url, poolMax: 2, logger, statementTimeoutMs: 500, applicationName: pumpSession });
  onTestFinished(() => db.close());
  const trust = { ms: 0 };
  const accepted = new Map<string, boolean>();
  const pump = new OutcomePump({
    db,
    schema: context.schema,
    actor: 'worker:w1',
    logger,
    trustedForMs: () => trust.ms,
    onFinished: ({ jobId }, isAccepted) => void accepted.set(jobId, isAccepted),
  });
  return { pump, accepted, trust };
}

async function recoverAll(): Promise<void> {
  const sweep = { actor: 'sweeper:test', graceSeconds: 0, tokenLimit: 0 };
  const leases = await findExpiredLeases(context.db, context.schema, 0, '00000000-0000-0000-0000-000000000000', 100);
  for (const lease of leases) await recoverLease(context.db, context.schema, lease, sweep);
}

/** Only the first is lost; the second, the last of its lease, was written. */
async function expectLeaseRunsOut(first: Job, second: Job, leaseId: string): Promise<void> {
  expect(await reread(context, second)).toMatchObject({ status: 'SUCCESS' });
  expect(await reread(context, first)).toMatchObject({ status: 'RUNNING', leaseId });
  expect(await stateOf(leaseId)).toBe('ACTIVE');
  await checkInvariants(context);
  await expireLease(context, leaseId);
  await recoverAll();
  expect(await reread(context, first)).toMatchObject({ status: 'QUEUED', attempt: 1 });
  expect(await stateOf(leaseId)).toBe('EXPIRED');
  const again = await claim(context);
  await finish(context, again.jobs.find((job) => job.id === first.id)!);
  expect(await eventTypes(context, first)).toEqual([
    'job.enqueued',
    'job.started',
    'job.lease_expired',
    'job.started',
    'job.completed',
  ]);
}

test.each(['the connection is gone', 'the statement takes too long'])(
  'if an outcome is given up because %s, the lease does not end with the next one',
  async (why) => {
    const { db, schema } = context;
    const lane = why.includes('statement') ? 'slow' : 'gone';
    await addJobs(context, [{ targetId: lane, maxAttempts: 2 }, {}]);
    const { jobs, leaseId } = await claim(context);
    const first = jobs.find((job) => job.targetId === lane)!;
    const second = jobs.find((job) => job.targetId === null)!;
    const proxy = await startDelayingProxy(context);
    const { pump, accepted, trust } = createPump(proxy.url);
    const giveUp = async () => {
      pump.add(ending(first), false);
      await pump.idle();
    };
    if (lane === 'gone') {
      proxy.refuse();
      await giveUp();
      proxy.accept();
    } else {
      await db.transaction(async (tx) => {
        await tx.query(`select id from ${schema}.jobs where id = $1 for update`, [first.id]);
        await giveUp();
        // Server processes that nobody listens to any more still wait for the lock, or will. Like their host, they are gone.
        const sessions = `from pg_stat_activity where datname = current_database() and application_name = '${pumpSession}'`;
        await eventually(async () =>
          expect(await db.query(`select pg_terminate_backend(pid) ${sessions}`)).toEqual([]),
        );
      }, staysOpen);
    }
    expect(accepted.get(first.id)).toBe(false);
    // On a busy machine it takes more than one try.
    trust.ms = 60_000;
    pump.add(ending(second), true);
    await pump.idle();
    expect(accepted.get(second.id)).toBe(true);
    await expectLeaseRunsOut(first, second, leaseId);
  },
);

test('after a failover loses an acknowledged outcome, the lease does not end with the next one', async () => {
  const { db, schema } = context;
  await addJobs(context, [{ maxAttempts: 2 }, {}]);
  const { jobs, leaseId } = await claim(context);
  const [first, second] = jobs as [Job, Job];
  // As on a standby that was promoted before it had received the outcome.
  await db
    .transaction(async (tx) => {
      const own = {
        query: tx.query.bind(tx),
        transaction: (work: (tx: unknown) => unknown) => work(tx),
      } as unknown as Database;
      const { accepted } = await finishAttempts(own, schema, [ending(first)], { actor: 'worker:w1' });
      expect([...accepted]).toEqual([first.id]);
      throw new Error('lost');
    })
    .catch((error: Error) => expect(error.message).toBe('lost'));
  await finishAttempts(db, schema, [ending(second)], { actor: 'worker:w1', endedLeases: [leaseId] });
  await expectLeaseRunsOut(first, second, leaseId);
});

test('a lease ends with the last of its jobs, in any grouping and with any outcomes', async () => {
  const { db, schema } = context;
  await addJobs(context, [{ targetId: 'a' }, { targetId: 'b' }, { targetId: 'c' }, {}, {}]);
  const { jobs, leaseId } = await claim(context);
  const items = jobs.map((job) => ending(job));
  const error = { code: 'X', message: 'x' };
  items[0]!.outcome = { kind: 'stopCanceled', message: 'c' };
  items[1]!.outcome = { kind: 'fail', error };
  // Somebody asked for another end meanwhile: the outcome is refused, and that end is written instead.
  items[2]!.outcome = { kind: 'requeue', reason: 'drained' };
  await db.query(`update ${schema}.jobs set cancel_requested = true, cancel_intent = 'cancel' where id = $1`, [
    items[2]!.jobId,
  ]);
  await finishAttempts(db, schema, items.slice(0, 1), { actor: 'worker:w1' });
  expect(await stateOf(leaseId)).toBe('ACTIVE');
  const { accepted } = await finishAttempts(db, schema, items.slice(1), { actor: 'worker:w1', endedLeases: [leaseId] });
  expect(accepted.size).toBe(4);
  expect(await stateOf(leaseId)).toBe('RELEASED');
  await checkInvariants(context);
});

test('if the connections of a daemon hang during a write until the lease has expired, no job is stuck', async () => {
  const proxy = await startProxy(context.url);
  const gates = new Map<string, () => void>();
  const gated = defineJob({
    type: 'gated',
    async run({ job }) {
      if (job.attempt === 1) await new Promise<void>((resolve) => gates.set(job.targetId as string, resolve));
      return job.attempt;
    },
  });
  // One sweeper, which leaves time for the second outcome to be written first.
  const env = { LEASE_SECONDS: '4', STALE_LEASE_GRACE_SECONDS: '4' };
  await startDaemon({ ...context, url: proxy.url }, { handlers: [gated], env });
  const jobs = await addJobs(context, [
    { type: 'gated', targetId: 'hang-1', maxAttempts: 2 },
    { type: 'gated', targetId: 'hang-2', maxAttempts: 2 },
  ]);
  await eventually(() => expect(gates.size).toBe(2));
  const { leaseId } = await reread(context, jobs[0]!);
  expect((await reread(context, jobs[1]!)).leaseId).toBe(leaseId);
  proxy.blackHole();
  gates.get('hang-1')?.();
  // In another batch than the first.
  await new Promise((resolve) => setImmediate(() => setImmediate(resolve)));
  gates.get('hang-2')?.();
  const over = `select 1 from ${context.schema}.leases where id = $1 and expires_at < now()`;
  await eventually(async () => expect(await context.db.query(over, [leaseId])).toHaveLength(1));
  proxy.heal();
  await eventually(async () => {
    for (const job of jobs) expect(await reread(context, job)).toMatchObject({ status: 'SUCCESS' });
  });
  await checkInvariants(context);
});
