// Only in `npm run test:citus`: the node of one tenant is killed under load. The tenant of the other node goes on
// meanwhile, and after the start of the node nothing is lost: jobs that ran on it when it was killed may run twice, no
// others.
import { expect, test } from 'vitest';
import { quoteSchema } from '../../server/database/identifiers.ts';
import { isConnectionError } from '../../server/database/sql-errors.ts';
import { readCounts } from '../../server/stats/read-counts.ts';
import { createApiKey } from '../../server/tenants/api-keys/key-store.ts';
import { verifyTenant } from '../../server/verify/verify-tenant.ts';
import { defineJob } from '../../server/worker/handlers/define-job.ts';
import { startDaemon } from '../support/daemon/daemon.ts';
import { eventually } from '../support/eventually.ts';
import { EventReader } from '../support/http/sse.ts';
import { citusCluster } from '../support/postgres/citus.ts';
import { addTenantOn, isSameNode, killNode, nodesOf, startCommand } from '../support/postgres/citus-nodes.ts';
import { useTenant } from '../support/postgres/database.ts';

const context = useTenant();

test.runIf(citusCluster() && startCommand())('a lost node stops only its tenants', { timeout: 400_000 }, async () => {
  const { db } = context;
  const [node] = await nodesOf(db, context.tenant.schemaName);
  const lost = { tenant: context.tenant, acknowledged: [] as string[], runs: [] as string[] };
  const healthy = {
    tenant: await addTenantOn(db, (other) => !isSameNode(other, node)),
    acknowledged: [] as string[],
    runs: [] as string[],
  };
  const all = new Map([lost, healthy].map((each) => [each.tenant.slug, each]));
  const work = defineJob({
    type: 'test.work',
    run: ({ job, payload }) => {
      all.get((payload as { slug: string }).slug)?.runs.push(job.id);
    },
  });
  const daemon = await startDaemon(context, { handlers: [work] });
  const readers = await Promise.all(
    [lost, healthy].map(async ({ tenant }) => {
      const { text: key } = await createApiKey(db, { tenantId: tenant.id, name: 'test', scopes: ['read'] });
      return (await EventReader.open(`${daemon.url}/api/events/stream`, { key })).ready();
    }),
  );
  let isLoading = true;
  const load = [lost, healthy].map(async (each) => {
    while (isLoading) {
      const jobs = Array.from({ length: 5 }, (_, i) => ({
        type: 'test.work',
        payload: { slug: each.tenant.slug },
        maxAttempts: 5,
        ...(i > 1 && { targetId: `lane-${i}` }),
      }));
      const enqueued = await daemon.enqueue(each.tenant, jobs, 'test').catch(async (error: unknown) => {
        // Whether it was stored is unknown, as for any caller.
        if (!isConnectionError(error)) throw error;
        await new Promise((resolve) => setTimeout(resolve, 200));
        return [];
      });
      each.acknowledged.push(...enqueued.map(({ job }) => job.id));
    }
  });
  await eventually(() => expect(Math.min(lost.runs.length, healthy.runs.length)).toBeGreaterThan(20));
  const restart = await killNode(node);
  const killedAt = healthy.runs.length;
  await eventually(() => expect(healthy.runs.length).toBeGreaterThan(killedAt + 100));
  await restart();
  const restartedAt = lost.runs.length;
  await eventually(() => expect(lost.runs.length).toBeGreaterThan(restartedAt + 20), { timeoutMs: 120_000 });
  isLoading = false;
  await Promise.all(load);
  for (const [i, { tenant, acknowledged, runs }] of [lost, healthy].entries()) {
    const schema = quoteSchema(tenant.schemaName);
    await eventually(
      async () => {
        const counts = await db.query<{ status: string }>(`select distinct status from ${schema}.jobs`);
        expect(counts).toEqual([{ status: 'SUCCESS' }]);
      },
      { timeoutMs: 120_000 },
    );
    const stored = (await db.query<{ id: string }>(`select id from ${schema}.jobs`)).map(({ id }) => id);
    expect(acknowledged.filter((id) => !stored.includes(id))).toEqual([]);
    expect(stored.filter((id) => !runs.includes(id))).toEqual([]);
    if (tenant === healthy.tenant) expect(runs).toHaveLength(acknowledged.length);
    await eventually(async () =>
      expect(await readCounts(db, schema)).toMatchObject({ SUCCESS: stored.length, RUNNING: 0 }),
    );
    await eventually(async () => {
      const written = await db.query<{ seq: string }>(`select seq from ${schema}.events where job_id is not null`);
      const streamed = new Set(readers[i]?.events.flatMap((message) => message.data.id ?? []));
      expect(written.map(({ seq }) => seq).filter((seq) => !streamed.has(seq))).toEqual([]);
    });
  }
  await daemon.stop(0);
  for (const { tenant } of [lost, healthy]) {
    expect((await verifyTenant(db, quoteSchema(tenant.schemaName))).violations).toEqual([]);
  }
});
