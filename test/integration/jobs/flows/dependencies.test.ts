// Jobs that wait for others, without a daemon: which of two things is committed and read first makes no difference.
import { expect, test } from 'vitest';
import { cancelJob } from '../../../../server/jobs/actions/pause-and-cancel.ts';
import { enqueueIn } from '../../../../server/jobs/enqueue/enqueue.ts';
import { openChildren } from '../../../../server/jobs/flows/fenced-children.ts';
import { followDependencies } from '../../../../server/jobs/flows/follow-dependencies.ts';
import { after, call, flowsOf } from '../../../support/flows.ts';
import { addJob, finish } from '../../../support/jobs.ts';
import { checkInvariants } from '../../../support/model/invariants.ts';
import { staysOpen, useTenant } from '../../../support/postgres/database.ts';

const context = useTenant();
const { family, follow, start, statusOf, suspend } = flowsOf(context);

test.each(['before', 'after', 'together with'])(
  'no wake-up is missed if the last child ends %s the parent stores its wait',
  async (order) => {
    const { parent, child } = await family();
    await follow();
    if (order === 'before') {
      await finish(context, child);
      // The follower reads the end while the parent still runs.
      await follow();
      await suspend(parent);
      expect(await statusOf(parent)).toBe('WAITING');
    } else {
      await suspend(parent);
      if (order === 'after') await follow();
      expect(await statusOf(parent)).toBe('WAITING');
      await finish(context, child);
    }
    await follow();
    expect(await statusOf(parent)).toBe('QUEUED');
    // It is woken once. While the call is open the log is followed.
    await follow();
    await cancelJob(context.db, context.schema, { jobId: parent.id, actor: 'test' });
    expect(await followDependencies(context.db, context.schema)).toBeUndefined();
    await checkInvariants(context);
  },
);

test('no wake-up is missed if a job ends while another transaction enqueues one that runs after it', async () => {
  const type = crypto.randomUUID();
  await addJob(context, { type });
  const first = await start(type);
  // Keeps the follower reading.
  const other = await addJob(context);
  await addJob(context, { after: [after(other)] });
  await follow();
  const enqueued = await context.db.transaction(async (tx) => {
    const [made] = await enqueueIn(
      tx,
      context.schema,
      [{ type: 'demo.echo', payload: {}, after: [after(first)] }],
      'test',
    );
    await finish(context, first);
    // The follower reads the end; the edge is not visible yet.
    await follow();
    return made!.job;
  }, staysOpen);
  expect(enqueued).toMatchObject({ status: 'WAITING', waiting: { kind: 'after', jobs: 1 } });
  expect(await statusOf(enqueued)).toBe('WAITING');
  await follow();
  expect(await statusOf(enqueued)).toBe('QUEUED');
  await cancelJob(context.db, context.schema, { jobId: other.id, actor: 'test' });
  await follow();
});

test('an attempt that lost its lease creates no edges', async () => {
  const type = crypto.randomUUID();
  const job = await addJob(context, { type });
  const held = { jobId: job.id, leaseId: crypto.randomUUID() };
  const options = { onFailure: 'stop' } as const;
  expect(await openChildren(context.db, context.schema, held, call, [job.id], options)).toBe(false);
  const rows = await context.db.query(`select 1 from ${context.schema}.dependencies where job_id = $1`, [job.id]);
  expect(rows).toEqual([]);
});

test('a tenant without waiting jobs does not read its log, and nothing is missed when one begins to wait', async () => {
  const { parent, child } = await family();
  await suspend(parent);
  // Nobody followed so far: the position of the follower says nothing.
  await finish(context, child);
  for (let n = 0; n < 20; n++) await addJob(context);
  await follow();
  expect(await statusOf(parent)).toBe('QUEUED');
  await cancelJob(context.db, context.schema, { jobId: parent.id, actor: 'test' });
  await follow();
  const [before] = await context.db.query(`select * from ${context.schema}.followers where name = 'dependencies'`);
  await addJob(context);
  expect(await followDependencies(context.db, context.schema)).toBeUndefined();
  expect(await context.db.query(`select * from ${context.schema}.followers where name = 'dependencies'`)).toEqual([
    before,
  ]);
});
