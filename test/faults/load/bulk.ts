// Batches of jobs for later, and people who cancel them all with one operation. Each batch has a queue of its own, so that
// the checker knows which jobs an operation has to end.
import type { TestTenant, World } from '../world.ts';
import { operate } from './operations.ts';

const jobsPerBatch = 5;

/** None of them starts in a run. */
const runAt = () => new Date(Date.now() + 86_400_000).toISOString();

export async function cancelInBulk(world: World, isOn: () => boolean): Promise<void> {
  for (let n = 0; isOn(); n++) {
    const tenant = world.choices.pick(world.tenants);
    const queue = `bulk-${n}`;
    const made = await enqueueBatch(world, tenant, queue);
    // An operation affects the jobs that exist when it starts. What is unknown may come later.
    if (made === 'ok' && (await cancelQueue(world, tenant, queue)) === 'ok') tenant.canceledQueues.add(queue);
    await world.pause(500);
  }
}

async function enqueueBatch(world: World, tenant: TestTenant, queue: string) {
  const job = { type: 'work', queue, run_at: runAt() };
  const { outcome } = await operate(world.log, {
    name: 'batch',
    kind: 'queue',
    resource: queue,
    daemon: world.anyDaemon(),
    tenant: tenant.tenant.slug,
    apiKey: tenant.apiKey,
    method: 'POST',
    path: '/api/jobs/batch',
    body: { jobs: Array.from({ length: jobsPerBatch }, () => job), atomic: world.choices.pick([true, false]) },
    read: ({ results = [] }) => ({ jobs: results.flatMap(({ job: made }) => (made === undefined ? [] : [made.id])) }),
  });
  return outcome;
}

async function cancelQueue(world: World, tenant: TestTenant, queue: string) {
  const { outcome } = await operate(world.log, {
    name: 'make',
    kind: 'operation',
    daemon: world.anyDaemon(),
    tenant: tenant.tenant.slug,
    apiKey: tenant.apiKey,
    method: 'POST',
    path: '/api/operations',
    body: { action: 'cancel', filter: { queue } },
    read: ({ id }) => ({ resource: id ?? '' }),
  });
  return outcome;
}

/** After the faults: batches that nobody could cancel for sure. Those with an acknowledged operation are left to it. */
export async function cancelLeftBatches(world: World): Promise<void> {
  for (const tenant of world.tenants) {
    const left = await world.context.db.query<{ id: string; queue: string }>(
      `select id, queue from ${tenant.schema}.jobs where queue like 'bulk-%' and status = 'PENDING'`,
    );
    for (const { id, queue } of left) {
      if (!tenant.canceledQueues.has(queue)) await world.act('cancel', id, { tenant });
    }
  }
}
