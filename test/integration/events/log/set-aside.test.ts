// A row that a follower cannot process: it is recorded and passed by, and what lies around it is handled once.
import { randomBytes } from 'node:crypto';
import { expect, onTestFinished, test } from 'vitest';
import { Database } from '../../../../server/database/database.ts';
import { sealEvents } from '../../../../server/events/seals/seal.ts';
import { createLogger } from '../../../../server/kernel/logger.ts';
import { probeTenants } from '../../../../server/maintenance/probes.ts';
import { runRetentionOnce } from '../../../../server/maintenance/retention.ts';
import { Metrics, reportSetAside } from '../../../../server/stats/metrics.ts';
import { readCounts } from '../../../../server/stats/read-counts.ts';
import { rollUpOnce } from '../../../../server/stats/roll-up.ts';
import { verifyTenant } from '../../../../server/verify/verify-tenant.ts';
import { createDeliveries } from '../../../../server/webhooks/outbox.ts';
import { writeEvent } from '../../../support/events.ts';
import { addJob, claim, eventTypes, finish, reread } from '../../../support/jobs.ts';
import { citusCluster } from '../../../support/postgres/citus.ts';
import { addTenant, directUrl, type TenantContext, useTenant } from '../../../support/postgres/database.ts';

const context = useTenant();
let number = 0;
async function newTenant(): Promise<TenantContext> {
  return { ...context, ...(await addTenant(context.db, `aside${++number}`)) };
}

/** Too long for an index row, and nothing that Postgres could compress. */
const tooLong = randomBytes(6000).toString('base64');
// Postgres stores this time, and cannot count its microseconds since 1970.
const uncountable = '294276-12-31T00:00:00Z';

const setAside = (where: TenantContext) =>
  where.db.query(
    `select follower, event_xid::text || ':' || event_seq as event, code from ${where.schema}.set_aside_events`,
  );

async function keyOf(where: TenantContext, jobId: string, type: string): Promise<string> {
  const [row] = await where.db.query<{ key: string }>(
    `select xid::text || ':' || seq as key from ${where.schema}.events where job_id = $1 and type = $2`,
    [jobId, type],
  );
  return row!.key;
}

for (const [limit, place] of [
  [2000, 0],
  [2000, 7],
  [2000, 12],
  [5, 6],
  [1, 3],
] as const) {
  test(`webhooks: the address of job ${place} of 13 is too long for an index, in steps of ${limit}`, async () => {
    const where = await newTenant();
    const jobs = [];
    for (let i = 0; i < 13; i++) {
      // As an older version stored it.
      const webhookUrl = `https://example.com/${i === place ? tooLong : i}`;
      jobs.push(await addJob(where, { webhookUrl }));
    }
    const { jobs: claimed } = await claim(where);
    for (const job of claimed) await finish(where, job);
    const reported = [];
    for (;;) {
      const followed = await createDeliveries(where.db, where.tenant, limit);
      reported.push(...(followed.setAside ?? []));
      if (followed.complete) break;
    }
    const poison = jobs[place]!;
    const event = await keyOf(where, poison.id, 'job.completed');
    expect(reported).toEqual([{ follower: 'webhooks', event, code: '54000', error: expect.any(String) }]);
    expect(await setAside(where)).toEqual([{ follower: 'webhooks', event, code: '54000' }]);
    const deliveries = await where.db.query<{ job_id: string }>(
      `select job_id from ${where.schema}.webhook_deliveries`,
    );
    const others = jobs.filter((job) => job !== poison).map((job) => job.id);
    expect(deliveries.map((delivery) => delivery.job_id).sort()).toEqual(others.sort());
    // Its tenant finds it in the history of the job.
    expect((await eventTypes(where, poison)).at(-1)).toBe('job.webhook_failed');
    expect((await verifyTenant(where.db, where.schema)).setAside).toEqual({ webhooks: 1 });
  });
}

test('statistics: two events name a queue that is too long for an index', async () => {
  const where = await newTenant();
  const poison = () =>
    where.db.query(
      `insert into ${where.schema}.events (type, job_id, to_status, actor, data)
       values ('job.enqueued', gen_random_uuid(), 'QUEUED', 'test', $1)`,
      [JSON.stringify({ queue: tooLong })],
    );
  for (let i = 0; i < 5; i++) await addJob(where);
  await poison();
  for (let i = 0; i < 5; i++) await addJob(where);
  await poison();
  await addJob(where);
  const metrics = new Metrics({ perTenant: false, version: 'test' });
  const report = reportSetAside(metrics, createLogger('silent'));
  for (;;) {
    const followed = await rollUpOnce(where.db, where.schema);
    report(where.tenant, followed.setAside);
    if (followed.complete) break;
  }
  expect(await readCounts(where.db, where.schema)).toMatchObject({ QUEUED: 11 });
  expect(await setAside(where)).toMatchObject([
    { follower: 'statistics', code: '54000' },
    { follower: 'statistics', code: '54000' },
  ]);
  expect(await metrics.registry.metrics()).toContain('leasehold_events_set_aside_total{follower="statistics"} 2');
  // Nothing is counted twice afterwards.
  await addJob(where);
  expect(await rollUpOnce(where.db, where.schema)).toMatchObject({ handled: 1, complete: true });
  expect(await readCounts(where.db, where.schema)).toMatchObject({ QUEUED: 12 });
});

/** The type of events that the Postgres of `withUnhashable` cannot hash. */
const unhashable = 'test.unhashable';

/** Connections whose Postgres refuses to hash some rows, as it does with rows that are damaged on disk. */
async function withUnhashable(): Promise<Database> {
  await context.db.query('create schema if not exists damaged');
  await context.db.query(`create or replace function damaged.sha256(bytes bytea) returns bytea language plpgsql as $$
    begin
      if position(convert_to('${unhashable}', 'UTF8') in bytes) > 0 then
        raise numeric_value_out_of_range;
      end if;
      return pg_catalog.sha256(bytes);
    end $$`);
  const name = new URL(context.url).pathname.slice(1);
  await context.db.query(`alter database "${name}" set search_path = damaged, pg_catalog, public`);
  // A pooler has connections from before.
  const db = new Database({ url: directUrl(context), poolMax: 2, logger: createLogger('silent') });
  onTestFinished(async () => {
    await db.close();
    await context.db.query(`alter database "${name}" reset search_path`);
  });
  return db;
}

// The nodes of a cluster would each need the function.
test.skipIf(citusCluster())(
  'seals: an event without a hash keeps its position in the chain, and verification names it',
  async () => {
    const where = await newTenant();
    const { schema } = where;
    const db = await withUnhashable();
    await sealEvents(db, schema);
    for (let n = 0; n < 5; n++) await writeEvent(db, schema, { n });
    await writeEvent(db, schema, { type: unhashable });
    for (let n = 0; n < 5; n++) await writeEvent(db, schema, { n });
    const isMarked = `type = '${unhashable}'`;
    const keyOfMarked = `select xid::text || ':' || seq as key from ${schema}.events where ${isMarked}`;
    const [row] = await db.query<{ key: string }>(keyOfMarked);
    expect(await sealEvents(db, schema)).toMatchObject({ handled: 11, setAside: [{ event: row!.key, code: '22003' }] });
    expect(await setAside(where)).toEqual([{ follower: 'seals', event: row!.key, code: '22003' }]);
    await writeEvent(db, schema);
    expect(await sealEvents(db, schema)).toMatchObject({ handled: 1 });
    const verify = async () => (await verifyTenant(db, schema)).violations;
    expect(await verify()).toMatchObject([{ kind: 'event_unreadable', event: row!.key, seal: '1' }]);
    // Its place is sealed all the same.
    await db.query(`delete from ${schema}.events where ${isMarked}`);
    expect(await verify()).toMatchObject([{ kind: 'event_missing', event: row!.key, seal: '1' }]);
  },
);

test.skipIf(citusCluster())('seals: a sealed event that is changed into one without a hash is altered', async () => {
  const { schema } = await newTenant();
  const db = await withUnhashable();
  await sealEvents(db, schema);
  for (let n = 0; n < 3; n++) await writeEvent(db, schema, { n });
  await sealEvents(db, schema);
  await db.query(`update ${schema}.events set type = $1 where data ->> 'n' = '1'`, [unhashable]);
  expect((await verifyTenant(db, schema)).violations).toMatchObject([{ kind: 'event_altered' }]);
});

test('seals: a time without countable microseconds is sealed like any other', async () => {
  const { db, schema } = await newTenant();
  await sealEvents(db, schema);
  await writeEvent(db, schema);
  await db.query(`update ${schema}.events set at = $1`, [uncountable]);
  expect(await sealEvents(db, schema)).toMatchObject({ handled: 1, complete: true });
  expect((await verifyTenant(db, schema)).violations).toEqual([]);
  await db.query(`update ${schema}.events set at = $1::timestamptz - interval '1 microsecond'`, [uncountable]);
  expect((await verifyTenant(db, schema)).violations).toMatchObject([{ kind: 'event_altered' }]);
});

test('retention: an event from a clock that was far ahead does not keep later jobs from becoming stale', async () => {
  const where = await newTenant();
  const { db, schema } = where;
  await writeEvent(db, schema);
  await db.query(`update ${schema}.events set at = $1`, [uncountable]);
  const job = await addJob(where);
  const { jobs } = await claim(where);
  await finish(where, jobs[0]!);
  await retain(where);
  expect(await reread(where, job)).toMatchObject({ staleAt: expect.any(String) });
});

test('retention: a job that cannot be marked is skipped, and tried again with the next scan', async () => {
  const where = await newTenant();
  const { db, schema } = where;
  await retain(where);
  const all = [await addJob(where), await addJob(where), await addJob(where)];
  const { jobs } = await claim(where);
  for (const job of jobs) await finish(where, job);
  const [, faulty] = all;
  await db.query(
    `alter table ${schema}.jobs add constraint refuses check (id <> '${faulty!.id}' or stale_at is null) not valid`,
  );
  await retain(where);
  const stale = await Promise.all(all.map(async (job) => (await reread(where, job)).staleAt !== null));
  expect(stale).toEqual([true, false, true]);
  expect(await retain(where)).toMatchObject({ stale: 0, complete: true });
});

test('a probe that fails for one tenant is null there, and succeeds for all others', async () => {
  const [broken, healthy] = [await newTenant(), await newTenant()];
  await broken.db.query(`insert into ${broken.schema}.followers (name, snapshot) values ('x', 'no snapshot')`);
  const questions = {
    reached: (s: string) =>
      `(select pg_snapshot_xmax(snapshot::pg_snapshot)::text from ${s}.followers where name = 'x')`,
    one: () => '1',
  };
  const { found: results } = await probeTenants(context.db, [broken.tenant, healthy.tenant], questions);
  expect(results.map(({ results }) => results)).toEqual([
    { reached: null, one: 1 },
    { reached: null, one: 1 },
  ]);
});

function retain(where: TenantContext) {
  const config = {
    retentionStaleAfterSeconds: 0,
    retentionDeleteAfterSeconds: 3600,
    retentionEventDays: 90,
    retentionReceivedEventDays: 7,
  };
  return runRetentionOnce(where.db, where.tenant, { config, actor: 'sweeper:t', logger: createLogger('silent') });
}
