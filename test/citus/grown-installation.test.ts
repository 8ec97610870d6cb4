// Only in `npm run test:citus`: an installation that began on one Postgres becomes a cluster, as docs/scaling.md describes.
// Its jobs, streams and statistics continue on the node.
import { randomBytes } from 'node:crypto';
import pg from 'pg';
import { expect, onTestFinished, test } from 'vitest';
import { Database } from '../../server/database/database.ts';
import { quoteSchema } from '../../server/database/identifiers.ts';
import { migrateControl } from '../../server/database/migrations/migrate.ts';
import { createLogger } from '../../server/kernel/logger.ts';
import { readCounts } from '../../server/stats/read-counts.ts';
import { createApiKey } from '../../server/tenants/api-keys/key-store.ts';
import { verifyTenant } from '../../server/verify/verify-tenant.ts';
import { startDaemon } from '../support/daemon/daemon.ts';
import { eventually } from '../support/eventually.ts';
import { EventReader } from '../support/http/sse.ts';
import { addJobs } from '../support/jobs.ts';
import {
  type CitusCluster,
  citusCluster,
  createDatabases,
  dropOnAllNodes,
  joinNodes,
} from '../support/postgres/citus.ts';
import { databaseUrl, provisionForTest } from '../support/provision.ts';

test.runIf(citusCluster())('an installation on one Postgres becomes a cluster', { timeout: 300_000 }, async () => {
  const cluster = citusCluster() as CitusCluster;
  const name = `leasehold_test_${randomBytes(6).toString('hex')}`;
  const url = databaseUrl(cluster.coordinator, name);
  await createDatabases(cluster, name);
  onTestFinished(() => dropOnAllNodes(cluster, name));
  const open = () => {
    const opened = new Database({ url, poolMax: 5, logger: createLogger('silent') });
    onTestFinished(() => opened.close());
    return opened;
  };

  const one = open();
  await migrateControl(one);
  const tenant = await provisionForTest(one, 'acme');
  const schema = quoteSchema(tenant.schemaName);
  const { text: key } = await createApiKey(one, { tenantId: tenant.id, name: 'test', scopes: ['read'] });
  const context = { db: one, url, tenant, schema };
  const before = await startDaemon(context);
  const first = await (await EventReader.open(`${before.url}/api/events/stream`, { key })).ready();
  await addJobs(context, Array(10).fill({ targetId: 'lane' }));
  await first.until((reader) => completed(reader) === 10);
  await eventually(async () => expect(await readCounts(one, schema)).toMatchObject({ SUCCESS: 10 }));
  await before.stop(0);
  await addJobs(context, Array(10).fill({ targetId: 'lane' }));
  await one.close();

  await joinNodes(cluster, name);
  await distribute(url, tenant.schemaName);

  const grown = { ...context, db: open() };
  await addJobs(grown, Array(10).fill({ targetId: 'lane' }));
  const after = await startDaemon(grown);
  const second = await EventReader.open(`${after.url}/api/events/stream`, { key, lastEventId: first.lastId });
  await second.until((reader) => completed(reader) === 20);
  await eventually(async () => {
    expect(await readCounts(grown.db, schema)).toMatchObject({ SUCCESS: 30, QUEUED: 0, RUNNING: 0 });
    const written = await grown.db.query<{ seq: string }>(`select seq from ${schema}.events where job_id is not null`);
    const streamed = [...first.events, ...second.events].flatMap((message) => message.data.id ?? []);
    expect(streamed.sort()).toEqual(written.map(({ seq }) => seq).sort());
  });
  await after.stop(0);
  expect((await verifyTenant(grown.db, schema)).violations).toEqual([]);
});

/** The command of docs/scaling.md. */
async function distribute(url: string, schemaName: string): Promise<void> {
  const client = new pg.Client(url);
  await client.connect();
  try {
    await client.query('set citus.enable_unsafe_triggers = on');
    await client.query('select citus_schema_distribute($1::regnamespace)', [schemaName]);
  } finally {
    await client.end();
  }
}

function completed(reader: EventReader): number {
  return reader.events.filter((message) => message.event === 'job:completed').length;
}
