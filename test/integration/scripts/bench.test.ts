// A short slice of `npm run bench`: the workloads run to their end and keep their order. No times.
import { expect, test } from 'vitest';
import type { Daemon } from '../../../server/daemon/daemon.ts';
import { enqueue } from '../../../server/jobs/enqueue/enqueue.ts';
import { defineJob } from '../../../server/worker/handlers/define-job.ts';
import { startDaemon } from '../../support/daemon/daemon.ts';
import { useTenantPerTest } from '../../support/postgres/database.ts';

// Jobs that a workload leaves belong to nobody else.
const context = useTenantPerTest();

interface Item {
  i: number;
  key?: string;
}

function system() {
  let daemon: Daemon | undefined;
  const toJob = (item: Item) => ({ type: 'noop', payload: item, targetId: item.key });
  return {
    reset: async () => {},
    enqueueBulk: (items: Item[]) => enqueue(context.db, context.schema, items.map(toJob), 'bench'),
    enqueueOne: (item: Item) => daemon?.enqueue(context.tenant, [toJob(item)], 'bench'),
    startWorker: async ({ handler }: { handler(item: Item): unknown }) => {
      const noop = defineJob({ type: 'noop', run: ({ payload }) => handler(payload as Item) as never });
      daemon = await startDaemon(context, { handlers: [noop] });
      return { stop: () => daemon?.stop(0) };
    },
    pending: async () => {
      const rows = await context.db.query(
        `select 1 from ${context.schema}.jobs where status in ('QUEUED', 'RUNNING') and lane_head limit 1`,
      );
      return rows.length > 0;
    },
    block: (keys: string[]) =>
      context.db.query(
        `update ${context.schema}.jobs set status = 'ERROR', finished_at = now(), held_since = now(), error = '{}'
          where target_id = any($1) and lane_head`,
        [keys],
      ),
  };
}

test.each([
  ['W1', { n: 300 }],
  ['W3', { seconds: 1 }],
  ['W4', { n: 300, keys: 20 }],
  ['W5', { n: 50, blocked: 2000 }],
])('%s runs to its end', async (name, options) => {
  const { workloads } = await import(new URL('../../../scripts/bench/workloads.mjs', import.meta.url).href);
  const result = await workloads[name].run(system(), { options, calm: async () => {} });
  expect(result.value).toBeGreaterThan(0);
  expect([result.outOfOrder ?? 0, result.overlap ?? 0]).toEqual([0, 0]);
});
