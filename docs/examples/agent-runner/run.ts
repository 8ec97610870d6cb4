// Three tasks for each of twenty machines: twenty lanes run side by side, the tasks of a machine in order.
//   HANDLERS=./jobs npx leaseholdd                  (in another terminal; it prints the key)
//   LEASEHOLD_KEY=lh_… npx tsx run.ts
import { jobRequest, LeaseholdClient } from 'leasehold/client';
import type agent from './jobs/agent.ts';

const client = new LeaseholdClient({
  url: process.env.LEASEHOLD_URL ?? 'http://127.0.0.1:8080',
  apiKey: process.env.LEASEHOLD_KEY ?? '',
});
const secondsPerStep = Number(process.env.SECONDS_PER_STEP ?? 1);
const machines = Array.from({ length: 20 }, (_, i) => `machine-${String(i + 1).padStart(2, '0')}`);

const requests = machines.flatMap((targetId) =>
  ['inspect', 'repair', 'report'].map((task) =>
    jobRequest<typeof agent>('agent.run', { task, secondsPerStep }, { targetId, author: 'agent-runner' }),
  ),
);
// All or none. Repeated after a lost answer, with one idempotency key: no job exists twice.
const enqueued = await client.enqueueMany(requests, { atomic: true });

let done = 0;
await Promise.all(
  enqueued.map(async (one) => {
    if (!one.ok) throw one.error;
    // A failed job holds its machine. This waits until a person has resumed, resolved or skipped it.
    const { target_id, result } = await client.jobs.wait(one, { onError: 'wait' });
    console.log(`${target_id}: ${result?.steps ?? 0} steps, ${++done} of ${enqueued.length} jobs`);
  }),
);
