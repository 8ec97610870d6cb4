// A connection that is cut after COMMIT reached the server: what is unknown is found out, not paid for.
import { expect, test } from 'vitest';
import type { Database } from '../../../../server/database/database.ts';
import { isConnectionError } from '../../../../server/database/sql-errors.ts';
import { type Claimed, type ClaimRequest, claimJobs } from '../../../../server/jobs/claim/claim.ts';
import { startLoop } from '../../../support/daemon/loop.ts';
import { eventually } from '../../../support/eventually.ts';
import { addJobs, claim, eventTypes, finish, reread } from '../../../support/jobs.ts';
import { checkInvariants } from '../../../support/model/invariants.ts';
import { staysOpen, useTenant } from '../../../support/postgres/database.ts';

const context = useTenant();
const long = { leaseSeconds: 3600, heartbeatSeconds: 1 };

const goneAndBack = ['job.enqueued', 'job.started', 'job.requeued', 'job.started', 'job.completed'];

test('jobs of a claim whose answer was lost are requeued and run; no attempt is counted', async () => {
  const { db, schema } = context;
  let cuts = 0;
  const { loop } = startLoop(context, {
    ...long,
    sendClaim: async (_tenant, request) => {
      const claimed = await claimJobs(db, schema, request);
      if (cuts++ === 0) throw new Error('Connection terminated unexpectedly');
      return claimed;
    },
  });
  const jobs = await addJobs(context, [{ targetId: 'cut' }, { targetId: 'cut' }, {}]);
  loop.wake();
  await eventually(async () => {
    for (const job of jobs) expect(await reread(context, job)).toMatchObject({ status: 'SUCCESS', attempt: 1 });
  });
  expect(await eventTypes(context, jobs[0]!)).toEqual(goneAndBack);
  await checkInvariants(context);
});

test('a job that was claimed with an outcome whose answer was lost is requeued and runs; the outcome stays', async () => {
  const { db, schema } = context;
  let cuts = 0;
  // The first transaction is that of the first outcome, which takes the next of its lane along.
  const cutting: Database = new Proxy(db, {
    get: (target, name) => {
      if (name === 'forTenant') return () => cutting;
      if (name !== 'pipelinedTransaction')
        return Reflect.get(target, name, target).bind?.(target) ?? Reflect.get(target, name);
      return async (...args: Parameters<Database['pipelinedTransaction']>) => {
        const result = await target.pipelinedTransaction(...args);
        if (cuts++ === 0) throw new Error('Connection terminated unexpectedly');
        return result;
      };
    },
  });
  const sendClaim = (_tenant: unknown, request: ClaimRequest) => claimJobs(db, schema, request);
  const { loop } = startLoop(context, { ...long, db: cutting, sendClaim });
  const jobs = await addJobs(context, [{ targetId: 'next' }, { targetId: 'next' }, { targetId: 'next' }]);
  loop.wake();
  await eventually(async () => {
    for (const job of jobs) expect(await reread(context, job)).toMatchObject({ status: 'SUCCESS', attempt: 1 });
  });
  expect(await eventTypes(context, jobs[0]!)).toEqual(['job.enqueued', 'job.started', 'job.completed']);
  expect(await eventTypes(context, jobs[1]!)).toEqual(goneAndBack);
  await checkInvariants(context);
});

test('a job that was claimed with an outcome whose second transaction failed is requeued and runs', async () => {
  const { db, schema } = context;
  let failures = 0;
  // The first transaction writes the outcomes and claims the next of the lane. A job that has asked needs another one.
  const failing: Database = new Proxy(db, {
    get: (target, name) => {
      if (name === 'forTenant') return () => failing;
      if (name !== 'transaction') return Reflect.get(target, name, target).bind?.(target) ?? Reflect.get(target, name);
      return async (...args: Parameters<Database['transaction']>) => {
        if (failures++ === 0)
          throw Object.assign(new Error('canceling statement due to lock timeout'), { code: '55P03' });
        return target.transaction(...args);
      };
    },
  });
  const sendClaim = (_tenant: unknown, request: ClaimRequest) => claimJobs(db, schema, request);
  const { loop } = startLoop(context, { ...long, db: failing, sendClaim });
  const jobs = await addJobs(context, [{ targetId: 'two' }, { targetId: 'two' }, {}]);
  await db.query(`update ${schema}.jobs set asked = true where id = $1`, [jobs[2]!.id]);
  loop.wake();
  await eventually(async () => {
    for (const job of jobs) expect(await reread(context, job)).toMatchObject({ status: 'SUCCESS', attempt: 1 });
  });
  expect(failures).toBeGreaterThan(0);
  expect(await eventTypes(context, jobs[1]!)).toEqual(goneAndBack);
  await checkInvariants(context);
});

test('a loop that is stopped waits for the claims in flight, requeues their jobs, and claims no more', async () => {
  const { db, schema } = context;
  let answer = (_claimed: Promise<Claimed>) => {};
  const requests: ClaimRequest[] = [];
  const { loop, ran } = startLoop(context, {
    ...long,
    sendClaim: (_tenant, request) => {
      requests.push(request);
      return new Promise<Claimed>((resolve) => {
        answer = resolve;
      });
    },
  });
  const jobs = await addJobs(context, [{ targetId: 'stopped' }, {}]);
  loop.wake();
  await eventually(() => expect(requests).toHaveLength(1));
  let stopped = false;
  const stopping = loop.stopClaiming().then(() => {
    stopped = true;
  });
  loop.wake();
  await new Promise((resolve) => setImmediate(resolve));
  expect(stopped).toBe(false);
  answer(claimJobs(db, schema, requests[0]!));
  await stopping;
  await loop.flushed();
  for (const job of jobs) expect(await reread(context, job)).toMatchObject({ status: 'QUEUED', attempt: 0 });
  expect(ran).toEqual([]);
  expect(requests).toHaveLength(1);
  await checkInvariants(context);
  // The loops of other tests would claim them, and count other transactions.
  const left = await claim(context);
  await finish(context, left.jobs.find(({ targetId }) => targetId === null)!);
  await finish(context, left.jobs.find(({ targetId }) => targetId === 'stopped')!);
});

test('a connection that died between two statements is a lost connection, not a refusal', async () => {
  const failed = context.db.transaction(async (tx) => {
    const [row] = await tx.query<{ pid: number }>('select pg_backend_pid() as pid');
    await context.db.query('select pg_terminate_backend($1::int)', [row?.pid]);
    // The news arrives while nothing is asked.
    await eventually(async () => {
      const left = await context.db.query('select 1 from pg_stat_activity where pid = $1', [row?.pid]);
      expect(left).toEqual([]);
    });
    await new Promise((resolve) => setImmediate(resolve));
    await tx.query('select 1');
  }, staysOpen);
  const error = await failed.catch((reason: unknown) => reason);
  expect([String(error), isConnectionError(error)]).toEqual([String(error), true]);
});
