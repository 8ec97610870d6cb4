// An event from outside reaches each job that waits for it once: also if its delivery is repeated, because the daemon died
// before it had noted it, and if it came before the wait.
import { expect, test } from 'vitest';
import { openEventWait } from '../../../../server/jobs/attempt/event-waits.ts';
import { listPhases } from '../../../../server/jobs/attempt/phases.ts';
import type { Job } from '../../../../server/jobs/model/job.ts';
import { deliverEvents } from '../../../../server/jobs/received/deliver-events.ts';
import { receiveEvent } from '../../../../server/jobs/received/receive-event.ts';
import { addJob, claim, eventTypes } from '../../../support/jobs.ts';
import { useTenant } from '../../../support/postgres/database.ts';

const context = useTenant();

async function running(): Promise<Job> {
  const type = crypto.randomUUID();
  await addJob(context, { type });
  return (await claim(context, { types: [type] })).jobs[0] as Job;
}

function open(job: Job, name: string, event: string) {
  const held = { jobId: job.id, leaseId: job.leaseId as string };
  const call = { name, position: name === 'first' ? 0 : 1, parallel: true };
  return openEventWait(context.db, context.schema, held, call, { event, match: null, ms: null }, 'worker:w1');
}

const send = (name: string, data: unknown) =>
  receiveEvent(context.db, context.schema, { name, data, id: `${name}-${data}` }, 'test');
const deliver = () => deliverEvents(context.db, context.schema, 'test');

async function received(job: Job): Promise<unknown[]> {
  const phases = await listPhases(context.db, context.schema, job.id);
  return phases.map(({ result }) => (result as { data: unknown } | null)?.data);
}

test('an event whose delivery is repeated ends one wait of a job, and its second wait gets the next event', async () => {
  const job = await running();
  for (const name of ['first', 'second']) expect(await open(job, name, 'repeated')).toMatchObject({ kind: 'open' });
  await send('repeated', 1);
  await deliver();
  // Its daemon died after the commit that ended the wait.
  await context.db.query(`update ${context.schema}.received_events set delivered_at = null where name = 'repeated'`);
  await deliver();
  expect(await received(job)).toEqual([1, undefined]);
  await send('repeated', 2);
  await deliver();
  expect(await received(job)).toEqual([1, 2]);
  const types = await eventTypes(context, job);
  expect(types.filter((type) => type === 'job.event_received')).toHaveLength(2);
});

test('an event that arrived before the wait is found, once', async () => {
  const job = await running();
  await send('early', 1);
  await deliver();
  expect(await open(job, 'first', 'early')).toMatchObject({ kind: 'received', event: { data: 1 } });
  expect(await open(job, 'second', 'early')).toMatchObject({ kind: 'open' });
});
