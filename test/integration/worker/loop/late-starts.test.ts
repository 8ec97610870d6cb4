// Handlers that would begin long after their claim: their stop requests are read again first.
import { setTimeout as delay } from 'node:timers/promises';
import { expect, onTestFinished, test } from 'vitest';
import { Database } from '../../../../server/database/database.ts';
import { cancelJob, pauseJob } from '../../../../server/jobs/actions/pause-and-cancel.ts';
import { claimJobs } from '../../../../server/jobs/claim/claim.ts';
import { createLogger } from '../../../../server/kernel/logger.ts';
import { startLoop } from '../../../support/daemon/loop.ts';
import { eventually } from '../../../support/eventually.ts';
import { addJobs, eventTypes, reread } from '../../../support/jobs.ts';
import { checkInvariants } from '../../../support/model/invariants.ts';
import { useTenant } from '../../../support/postgres/database.ts';
import { startDelayingProxy } from '../../../support/postgres/proxies/delaying-proxy.ts';

const context = useTenant();

// No heartbeat comes in time to report a stop request.
const slowHeartbeat = { leaseSeconds: 60, heartbeatSeconds: 20 };
// Longer than a handler may begin after its stop requests were read.
const lateMs = 600;

test('a handler does not begin late if its job was canceled or paused since the claim; the other jobs of the claim begin', async () => {
  const { db, schema } = context;
  const [canceled, paused, other] = await addJobs(context, [{}, {}, {}]);
  const actor = 'user:ann';
  const { loop, ran } = startLoop(context, {
    ...slowHeartbeat,
    sendClaim: async (_tenant, request) => {
      const claimed = await claimJobs(db, schema, request);
      if (claimed.jobs.length === 0) return claimed;
      expect(await cancelJob(db, schema, { jobId: canceled!.id, actor })).toMatchObject({ done: false });
      expect(await pauseJob(db, schema, { jobId: paused!.id, actor })).toMatchObject({ done: false });
      await delay(lateMs);
      return claimed;
    },
  });
  loop.wake();
  await eventually(async () => {
    expect((await reread(context, canceled!)).status).toBe('CANCELED');
    expect((await reread(context, paused!)).status).toBe('PAUSED');
    expect((await reread(context, other!)).status).toBe('SUCCESS');
  });
  expect(ran).toEqual([other!.id]);
  await checkInvariants(context);
});

async function connectThroughProxy() {
  const proxy = await startDelayingProxy(context);
  const db = new Database({ url: proxy.url, poolMax: 2, logger: createLogger('silent') });
  onTestFinished(() => db.close());
  await db.query('select 1');
  return { proxy, db };
}

test('jobs whose stop requests cannot be read are requeued, and no attempt is counted', async () => {
  const { schema } = context;
  const { proxy, db } = await connectThroughProxy();
  const [job] = await addJobs(context, [{}]);
  let claims = 0;
  const { loop, ran } = startLoop(context, {
    ...slowHeartbeat,
    db,
    sendClaim: async (_tenant, request) => {
      const claimed = await claimJobs(context.db, schema, request);
      if (claims++ > 0) return claimed;
      proxy.holdRequests(claimed.leaseId);
      await delay(lateMs);
      return claimed;
    },
  });
  loop.wake();
  await proxy.cutWhenHeld();
  await proxy.deliverRequests();
  await eventually(async () => expect(await reread(context, job!)).toMatchObject({ status: 'SUCCESS', attempt: 1 }));
  expect(await eventTypes(context, job!)).toEqual([
    'job.enqueued',
    'job.started',
    'job.requeued',
    'job.started',
    'job.completed',
  ]);
  expect(ran).toEqual([job!.id]);
});

test('a loop that is stopped requeues the jobs whose stop requests are being read', async () => {
  const { schema } = context;
  const { proxy, db } = await connectThroughProxy();
  const [job] = await addJobs(context, [{}]);
  const { loop, ran } = startLoop(context, {
    ...slowHeartbeat,
    db,
    sendClaim: async (_tenant, request) => {
      const claimed = await claimJobs(context.db, schema, request);
      await delay(lateMs);
      proxy.holdAnswers();
      return claimed;
    },
  });
  loop.wake();
  await proxy.answerHeld();
  await loop.stopClaiming();
  proxy.deliverAnswers();
  await loop.flushed();
  await eventually(async () => expect(await reread(context, job!)).toMatchObject({ status: 'QUEUED', attempt: 0 }));
  expect(ran).toEqual([]);
  expect(loop.attempts.count).toBe(0);
  // Other tests of this file claim whatever waits.
  await cancelJob(context.db, schema, { jobId: job!.id, actor: 'test' });
});
