// A dump restored on a fresh server, whose transaction ids begin again: the log begins an epoch there, and no reader of
// it misses an event or reads one twice.
import { expect, test } from 'vitest';
import { continueNumbers } from '../../../server/database/migrations/restored-numbers.ts';
import { createLogger } from '../../../server/kernel/logger.ts';
import { readCounts } from '../../../server/stats/read-counts.ts';
import { createApiKey } from '../../../server/tenants/api-keys/key-store.ts';
import { migrateEverything } from '../../../server/tenants/migrate-all.ts';
import { verifyTenant } from '../../../server/verify/verify-tenant.ts';
import { startDaemon } from '../../support/daemon/daemon.ts';
import { eventually } from '../../support/eventually.ts';
import { useReceiver } from '../../support/http/receiver.ts';
import { EventReader } from '../../support/http/sse.ts';
import { addJob, addJobs } from '../../support/jobs.ts';
import { citusCluster } from '../../support/postgres/citus.ts';
import { copyDatabase } from '../../support/postgres/copy-database.ts';
import { addTenant, type TenantContext, useTenant } from '../../support/postgres/database.ts';
import { startPrivateServer } from '../../support/postgres/private-server.ts';

const context = useTenant();
const receiver = useReceiver();

test('after a dump was restored on a fresh server, stream, statistics, webhooks and seals continue exactly', async () => {
  const { db, schema, tenant } = context;
  // More transactions than a fresh server has had.
  await db.query('do $$ begin for i in 1..3000 loop perform pg_current_xact_id(); commit; end loop; end $$');
  const { text: key } = await createApiKey(db, { tenantId: tenant.id, name: 'test', scopes: ['read'] });
  const webhookUrl = `${receiver.url}/done`;
  const before = await startDaemon(context, { env: { WEBHOOK_ALLOW_PRIVATE: 'true' } });
  const stream = (url: string, lastEventId?: string) =>
    EventReader.open(`${url}/api/events/stream`, { key, lastEventId });
  const first = await (await stream(before.url)).ready();
  await addJobs(context, Array(20).fill({ webhookUrl, targetId: 'lane' }));
  await first.until((reader) => completed(reader) === 20);
  await eventually(async () => expect(await readCounts(db, schema)).toMatchObject({ SUCCESS: 20 }));
  await before.stop(0);
  // Not yet counted, sealed, delivered or streamed when the dump is made.
  await addJobs(context, Array(10).fill({ webhookUrl, targetId: 'lane' }));
  const { xid: oldXid } = await lastEvent(context);

  const server = await startPrivateServer();
  await copyDatabase(db, server.db, [tenant.schemaName]);
  const restored = { ...server, tenant, schema };
  // As `leasehold migrate` does, and each daemon before it serves.
  await migrateEverything(server.db, { concurrency: 1, logger: createLogger('silent') });
  await addJob(restored, { webhookUrl });
  // The same id of a transaction would be smaller: the upper bits are the epoch.
  const { xid } = await lastEvent(restored);
  const idOf = (logXid: string) => BigInt.asUintN(48, BigInt(logXid));
  const oldEpoch = BigInt(oldXid) >> 48n;
  expect([BigInt(xid) >> 48n, idOf(xid) < idOf(oldXid)]).toEqual([oldEpoch + 1n, true]);

  const after = await startDaemon(restored, { env: { WEBHOOK_ALLOW_PRIVATE: 'true' } });
  const second = await stream(after.url, first.lastId);
  await second.until((reader) => completed(reader) >= 11);
  await addJobs(restored, Array(9).fill({ webhookUrl, targetId: 'lane' }));
  await second.until((reader) => completed(reader) === 20);
  await eventually(async () => {
    expect(await readCounts(server.db, schema)).toMatchObject({ SUCCESS: 40, QUEUED: 0, RUNNING: 0 });
    expect(receiver.received.length).toBe(40);
    const written = await server.db.query<{ seq: string }>(`select seq from ${schema}.events where job_id is not null`);
    const streamed = [...first.events, ...second.events].flatMap((message) => message.data.id ?? []);
    expect(streamed.sort()).toEqual(written.map(({ seq }) => seq).sort());
  });
  await after.stop(0);
  const { violations } = await verifyTenant(server.db, schema);
  expect(violations).toEqual([]);
  const epochs = await server.db.query(`select epoch from ${schema}.log_epochs order by epoch`);
  expect(epochs.at(-1)).toEqual({ epoch: Number(oldEpoch) + 1 });
});

test.skipIf(citusCluster())(
  'after a dump whose sequences are behind its rows, numbers grow on, and nothing is set twice',
  async () => {
    const source = await addTenant(context.db);
    const job = await addJob({ ...context, ...source });
    const target = await addTenant(context.db);
    const rows = `from ${source.schema}`;
    await context.db.query(`truncate ${target.schema}.events, ${target.schema}.log_epochs`);
    // What a cluster leaves: numbers with an epoch in their upper bits, and sequences that gave out none of them.
    await context.db.query(
      `insert into ${target.schema}.events overriding system value
     select (jsonb_populate_record(e, jsonb_build_object('seq', e.seq + (7::bigint << 48)))).* ${rows}.events e`,
    );
    await context.db.query(`insert into ${target.schema}.log_epochs select * ${rows}.log_epochs`);
    await context.db.query(
      `insert into ${target.schema}.job_logs (job_id, seq, attempt, message) overriding system value
     values ($1, (7::bigint << 48) + 5, 1, 'before the dump')`,
      [job.id],
    );
    const names = [target.tenant.schemaName];
    const logger = createLogger('silent');
    // A tenant that cannot be read stops no other.
    const damaged = await addTenant(context.db);
    await context.db.query(`drop table ${damaged.schema}.log_epochs`);
    const all = [damaged.tenant.schemaName, ...names];
    expect(await continueNumbers(context.db, all, logger)).toEqual([target.schema]);
    expect(await continueNumbers(context.db, names, logger)).toEqual([]);
    const { id } = await addJob({ ...context, ...target });
    const inOrder = await context.db.query<{ job_id: string }>(
      `select job_id from ${target.schema}.events where job_id is not null order by seq`,
    );
    expect(inOrder.map((event) => event.job_id)).toEqual([job.id, id]);
    await context.db.query(`insert into ${target.schema}.job_logs (job_id, attempt, message) values ($1, 1, 'after')`, [
      job.id,
    ]);
    const lines = await context.db.query<{ message: string }>(
      `select message from ${target.schema}.job_logs order by seq`,
    );
    expect(lines.map(({ message }) => message)).toEqual(['before the dump', 'after']);
  },
);

function completed(reader: EventReader): number {
  return reader.events.filter((message) => message.event === 'job:completed').length;
}

async function lastEvent({ db, schema }: Pick<TenantContext, 'db' | 'schema'>): Promise<{ xid: string }> {
  const [row] = await db.query<{ xid: string }>(`select xid::text from ${schema}.events order by seq desc limit 1`);
  return row as { xid: string };
}
