// Every transition of the table: allowed from each of its `from`, refused from every other status, and
// stale when the status or lease of the job changed between the read and the write.
import { describe, expect, test } from 'vitest';
import { cancelJob } from '../../../../server/jobs/actions/pause-and-cancel.ts';
import { enqueue } from '../../../../server/jobs/enqueue/enqueue.ts';
import { finishAttempts } from '../../../../server/jobs/finish/finish.ts';
import { type Status, statuses, transitions } from '../../../../server/jobs/model/states.ts';
import { eventTypes, reread } from '../../../support/jobs.ts';
import { checkInvariants } from '../../../support/model/invariants.ts';
import { transitionVerbs } from '../../../support/model/transition-verbs.ts';
import { useTenant } from '../../../support/postgres/database.ts';

const context = useTenant();
const { jobIn, start, end, verbs, by, endings } = transitionVerbs(context);
const long = 3600;

async function expectRefusal(name: keyof typeof verbs, status: Status): Promise<void> {
  const job = await jobIn(status);
  const reported = await eventTypes(context, job);
  const answer = await verbs[name](job).catch((refusal: { code?: string }) => ({ refusal }));
  expect([name, (await reread(context, job)).status]).toEqual([name, status]);
  // A report that repeats what is known is told, and changes nothing.
  if (status === transitions[name].to) return;
  const changes = (await eventTypes(context, job)).slice(reported.length).filter((type) => !/_requested$/.test(type));
  expect([name, status, changes]).toEqual([name, status, []]);
  if (answer !== null && typeof answer === 'object' && 'refusal' in answer) {
    expect((answer.refusal as { code?: string }).code).toMatch(/INVALID_TRANSITION|LEASE_LOST|CONFLICT/);
  }
}

const names = Object.keys(verbs) as (keyof typeof verbs)[];

describe.each(names)('%s', (name) => {
  const { from, to, event } = transitions[name];
  const others = statuses.filter((status) => !(from as readonly Status[]).includes(status));

  test.each(from)('is allowed from %s', async (status) => {
    const job = await jobIn(status);
    expect(await verbs[name](job)).toBeTruthy();
    expect((await reread(context, job)).status).toBe(to);
    expect((await eventTypes(context, job)).at(-1)).toBe(event);
  });

  test('is refused from every other status', async () => {
    await Promise.all(others.map((status) => expectRefusal(name, status)));
  });

  test('is stale if the job was changed meanwhile', async () => {
    const status = from[0];
    const job = await jobIn(status);
    // Somebody else ends the job after we looked: through its lease if it has one, else by a cancel.
    if (status === 'RUNNING') {
      await end(job, { kind: 'requeue', reason: 'moved' });
      const successor = await start(job, 'w2');
      expect(successor?.leaseId).not.toBe(job.leaseId);
    } else await cancelJob(context.db, context.schema, by(job.id));
    const before = await reread(context, job);
    const reported = await eventTypes(context, job);
    const answer = await verbs[name](job).catch(() => undefined);
    const after = await reread(context, job);
    expect([after.status, after.leaseId, after.attempt]).toEqual([before.status, before.leaseId, before.attempt]);
    expect(await eventTypes(context, job)).toEqual(reported);
    // A cancel of a canceled job answers with what is.
    if (name !== 'cancel') expect(answer).toBeFalsy();
  });
});

test('enqueue creates a QUEUED job, or a PENDING one if its time is in the future', async () => {
  const runAt = new Date(Date.now() + long * 1000).toISOString();
  const [now, later] = await enqueue(
    context.db,
    context.schema,
    [
      { type: 'a', payload: {} },
      { type: 'a', payload: {}, runAt },
    ],
    'test',
  );
  expect(now?.job.status).toBe(transitions.enqueue.to);
  expect(later?.job.status).toBe(transitions.schedule.to);
});

test('a finish under a forged lease is refused', async () => {
  const job = await jobIn('RUNNING');
  const forged = { jobId: job.id, leaseId: crypto.randomUUID(), targetId: job.targetId };
  for (const outcome of Object.values(endings)) {
    const { accepted } = await finishAttempts(context.db, context.schema, [{ ...forged, outcome }], {
      actor: 'worker:x',
    });
    expect(accepted.size).toBe(0);
  }
  expect((await reread(context, job)).status).toBe('RUNNING');
});

test('every invariant holds afterwards', async () => {
  await checkInvariants(context);
});
