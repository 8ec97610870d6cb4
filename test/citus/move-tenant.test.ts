// Only in `npm run test:citus`: a tenant is moved to another node while its jobs run. Nothing is lost, stuck or run twice,
// and every reader of the log continues on the other node.
import pg from 'pg';
import { expect, test } from 'vitest';
import { readCounts } from '../../server/stats/read-counts.ts';
import { createApiKey } from '../../server/tenants/api-keys/key-store.ts';
import { verifyTenant } from '../../server/verify/verify-tenant.ts';
import { defineJob } from '../../server/worker/handlers/define-job.ts';
import { startDaemon } from '../support/daemon/daemon.ts';
import { eventually } from '../support/eventually.ts';
import { EventReader } from '../support/http/sse.ts';
import { citusCluster } from '../support/postgres/citus.ts';
import { type CitusNode, nodesOf } from '../support/postgres/citus-nodes.ts';
import { useTenant } from '../support/postgres/database.ts';

const context = useTenant();

test.runIf(citusCluster())('a tenant moves to another node under load', { timeout: 300_000 }, async () => {
  const { db, schema, tenant } = context;
  const runs: string[] = [];
  const work = defineJob({ type: 'test.work', run: ({ job }) => void runs.push(job.id) });
  const daemons = [
    await startDaemon(context, { handlers: [work] }),
    await startDaemon(context, { handlers: [work] }),
  ] as const;
  const { text: key } = await createApiKey(db, { tenantId: tenant.id, name: 'test', scopes: ['read'] });
  const reader = await (await EventReader.open(`${daemons[0].url}/api/events/stream`, { key })).ready();
  let isMoving = true;
  let enqueued = 0;
  const load = (async () => {
    while (isMoving || enqueued < 200) {
      const jobs = Array.from({ length: 5 }, (_, i) => ({
        type: 'test.work',
        payload: {},
        ...(i > 1 && { targetId: `lane-${i}` }),
      }));
      enqueued += (await daemons[1].enqueue(tenant, jobs, 'test')).length;
    }
  })();
  const [from, to] = await nodesOf(db, tenant.schemaName);
  await eventually(() => expect(runs.length).toBeGreaterThan(20));
  await moveTo(to as CitusNode);
  const movedAt = runs.length;
  await eventually(() => expect(runs.length).toBeGreaterThan(movedAt + 20));
  isMoving = false;
  await load;
  await eventually(async () => expect(await readCounts(db, schema)).toMatchObject({ SUCCESS: enqueued, RUNNING: 0 }), {
    timeoutMs: 120_000,
  });
  expect((await nodesOf(db, tenant.schemaName))[0]).not.toEqual(from);
  expect([runs.length, new Set(runs).size]).toEqual([enqueued, enqueued]);
  await eventually(async () => {
    const written = await db.query<{ seq: string }>(`select seq from ${schema}.events where job_id is not null`);
    const streamed = reader.events.flatMap((message) => message.data.id ?? []);
    expect(streamed.sort()).toEqual(written.map(({ seq }) => seq).sort());
  });
  for (const daemon of daemons) await daemon.stop(0);
  expect((await verifyTenant(db, schema)).violations).toEqual([]);
});

/** A command of the administrator, without the limits of a daemon's session. */
async function moveTo({ host, port }: CitusNode): Promise<void> {
  const client = new pg.Client(context.url);
  await client.connect();
  try {
    await client.query('select citus_schema_move($1::regnamespace, $2::text, $3::int)', [
      context.tenant.schemaName,
      host,
      port,
    ]);
  } finally {
    await client.end();
  }
}
