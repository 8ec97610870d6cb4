import { expect, test } from 'vitest';
import { sealEvents } from '../../../server/events/seals/seal.ts';
import { pauseJob } from '../../../server/jobs/actions/pause-and-cancel.ts';
import { resumeJob } from '../../../server/jobs/actions/resume.ts';
import { finishAttemptsIn } from '../../../server/jobs/finish/finish.ts';
import { eventsStatement } from '../../../server/jobs/retention/mark-stale.ts';
import { type Config, loadConfig } from '../../../server/kernel/config.ts';
import { createLogger } from '../../../server/kernel/logger.ts';
import { probeTenants } from '../../../server/maintenance/probes.ts';
import { createSessionRetention, runRetentionOnce } from '../../../server/maintenance/retention.ts';
import { readCounts } from '../../../server/stats/read-counts.ts';
import { rollUpOnce } from '../../../server/stats/roll-up.ts';
import { addJob, addJobs, claim, eventTypes, finish, reread } from '../../support/jobs.ts';
import { addTenant, staysOpen, type TenantContext, useTenant } from '../../support/postgres/database.ts';
import { createTasks } from '../../support/tasks.ts';

const context = useTenant();
const config = {
  retentionStaleAfterSeconds: 0,
  retentionDeleteAfterSeconds: 3600,
  retentionEventDays: 90,
  retentionReceivedEventDays: 7,
};
const failed = { kind: 'fail', error: { code: 'HANDLER_ERROR', message: 'no' } } as const;

let number = 0;
async function newTenant(): Promise<TenantContext> {
  return { ...context, ...(await addTenant(context.db, `retention${++number}`)) };
}

function retain(where: TenantContext, more: Partial<Parameters<typeof runRetentionOnce>[2]> = {}) {
  const logger = createLogger('silent');
  return runRetentionOnce(where.db, where.tenant, { config, actor: 'sweeper:t', logger, ...more });
}

/** As if it had all happened this long ago. */
async function age(where: TenantContext, interval: string): Promise<void> {
  await where.db.query(
    `update ${where.schema}.jobs set finished_at = finished_at - $1::interval, stale_at = stale_at - $1::interval`,
    [interval],
  );
  await where.db.query(`update ${where.schema}.events set at = at - $1::interval`, [interval]);
}

test('a finished job becomes stale, then is deleted with its phases and logs; each records an event', async () => {
  const where = await newTenant();
  const job = await addJob(where, { targetId: 't' });
  const { jobs } = await claim(where);
  await finish(where, jobs[0]!);
  await where.db.query(`insert into ${where.schema}.phases (job_id, name, position) values ($1, 'one', 0)`, [job.id]);
  await where.db.query(`insert into ${where.schema}.job_logs (job_id, attempt, message) values ($1, 1, 'hello')`, [
    job.id,
  ]);
  expect(await retain(where)).toMatchObject({ stale: 1, deleted: 0, complete: true });
  expect((await reread(where, job)).staleAt).not.toBeNull();
  expect(await retain(where)).toMatchObject({ stale: 0, deleted: 0 });
  await age(where, '2 hours');
  expect(await retain(where)).toMatchObject({ stale: 0, deleted: 1 });
  const retired = `select job_id, type, from_status from ${where.schema}.events where type in ('job.stale', 'job.deleted') order by seq`;
  expect(await where.db.query(retired)).toEqual([
    { job_id: job.id, type: 'job.stale', from_status: 'SUCCESS' },
    { job_id: job.id, type: 'job.deleted', from_status: 'SUCCESS' },
  ]);
  expect(await eventTypes(where, job)).toEqual([
    'job.enqueued',
    'job.started',
    'job.completed',
    'job.stale',
    'job.deleted',
  ]);
  for (const table of ['jobs', 'phases', 'job_logs']) {
    expect(await where.db.query(`select 1 from ${where.schema}.${table}`)).toEqual([]);
  }
  while (!(await rollUpOnce(where.db, where.schema)).complete);
  expect((await readCounts(where.db, where.schema)).SUCCESS).toBe(0);
});

test('held, waiting and running jobs are never touched, however old', async () => {
  const where = await newTenant();
  const by = { actor: 'user:ann' };
  const [holder, behind, , , paused, running] = await addJobs(where, [
    { targetId: 'held' },
    { targetId: 'held' },
    { targetId: 'goes-on', onError: 'continue' },
    {},
    { targetId: 'paused' },
    { targetId: 'busy' },
  ]);
  await pauseJob(where.db, where.schema, { ...by, jobId: paused!.id });
  const { jobs } = await claim(where);
  for (const job of jobs) if (job.id !== running!.id) await finish(where, job, failed);
  await age(where, '1000 days');
  expect(await retain(where)).toMatchObject({ stale: 2 });
  await age(where, '1000 days');
  expect(await retain(where)).toMatchObject({ deleted: 2 });
  const left = await where.db.query<{ id: string }>(`select id from ${where.schema}.jobs`);
  expect(left.map((row) => row.id).sort()).toEqual([holder!.id, behind!.id, paused!.id, running!.id].sort());
  expect(await reread(where, holder!)).toMatchObject({ status: 'ERROR', laneHead: true, staleAt: null });
});

test('a stale job that a person resumes is fresh again', async () => {
  const where = await newTenant();
  const job = await addJob(where);
  const { jobs } = await claim(where);
  await finish(where, jobs[0]!, failed);
  expect(await retain(where)).toMatchObject({ stale: 1 });
  await age(where, '2 hours');
  await resumeJob(where.db, where.schema, { jobId: job.id, actor: 'user:ann' });
  expect(await retain(where)).toMatchObject({ stale: 0, deleted: 0 });
  expect(await reread(where, job)).toMatchObject({ status: 'QUEUED', staleAt: null });
});

test('a run is bounded, continues where it stopped, and two concurrent runs share the work', async () => {
  const where = await newTenant();
  await retain(where);
  await addJobs(
    where,
    Array.from({ length: 30 }, () => ({})),
  );
  const { jobs } = await claim(where);
  for (const job of jobs) await finish(where, job);
  // Of its 90 events a batch reads four for each of its jobs, and the first 60 tell of no end.
  expect(await retain(where, { batch: 5, maxBatches: 4 })).toMatchObject({ stale: 20, complete: false });
  const rest = await Promise.all([retain(where, { batch: 5 }), retain(where, { batch: 5 })]);
  expect(rest[0].stale + rest[1].stale).toBe(10);
  await age(where, '2 hours');
  const gone = await Promise.all([retain(where, { batch: 7 }), retain(where, { batch: 7 })]);
  expect(gone[0].deleted + gone[1].deleted).toBe(30);
});

/** The position and state of the reader of ends, and the version of its row. */
async function reader(where: TenantContext) {
  const [row] = await where.db.query<{ snapshot: string; state: { looked_at: string }; version: string }>(
    `select snapshot, state, xmin::text as version from ${where.schema}.followers where name = 'retention'`,
  );
  return row!;
}

async function finishOne(where: TenantContext) {
  const job = await addJob(where);
  await finish(where, (await claim(where)).jobs[0]!);
  return job;
}

function withResolver() {
  let resolve = () => {};
  const promise = new Promise<void>((done) => {
    resolve = done;
  });
  return { promise, resolve };
}

/** All events are in a block; it all happened this long ago. */
async function sealAll(where: TenantContext, interval: string): Promise<void> {
  while (!(await sealEvents(where.db, where.schema)).complete);
  await where.db.query(`update ${where.schema}.event_seals set sealed_at = sealed_at - $1::interval`, [interval]);
  await age(where, interval);
}

const hourLater = { ...config, retentionStaleAfterSeconds: 3600, retentionDeleteAfterSeconds: 86_400 };

test('ends are read from the log in order, and a recent one delays those after it', async () => {
  const where = await newTenant();
  await retain(where);
  const old = await finishOne(where);
  await age(where, '2 hours');
  const young = await finishOne(where);
  expect(await retain(where, { config: hourLater })).toMatchObject({ stale: 1, complete: true });
  expect((await reread(where, old)).staleAt).not.toBeNull();
  expect((await reread(where, young)).staleAt).toBeNull();
  await age(where, '2 hours');
  expect(await retain(where, { config: hourLater })).toMatchObject({ stale: 1 });
  expect((await reread(where, young)).staleAt).not.toBeNull();
});

test('a run that finds nothing writes nothing', async () => {
  const where = await newTenant();
  await finishOne(where);
  await retain(where);
  await retain(where);
  const before = await reader(where);
  expect(await retain(where)).toMatchObject({ stale: 0, complete: true });
  expect(await reader(where)).toEqual(before);
});

test('events of a transaction in progress are not skipped', async () => {
  const where = await newTenant();
  await retain(where);
  const late = await addJob(where);
  const [claimed] = (await claim(where)).jobs;
  const [held, begun] = [withResolver(), withResolver()];
  // It has its number, and writes the end only after others wrote theirs.
  const slow = where.db.transaction(async (tx) => {
    // It names a table of the tenant: in a cluster the number is that of its node.
    await tx.query(`select pg_current_xact_id() from (select count(*) from ${where.schema}.jobs) as one_row`);
    begun.resolve();
    await held.promise;
    const { id, leaseId } = claimed!;
    const outcome = { kind: 'complete', result: null } as const;
    await finishAttemptsIn(tx, where.schema, [{ jobId: id, leaseId: leaseId!, targetId: null, outcome }], {
      actor: 'worker:slow',
    });
  }, staysOpen);
  await begun.promise;
  await finishOne(where);
  expect(await retain(where)).toMatchObject({ stale: 0, complete: true });
  held.resolve();
  await slow;
  expect(await retain(where)).toMatchObject({ stale: 2 });
  expect((await reread(where, late)).staleAt).not.toBeNull();
});

test('events are kept until they have been read, however short their retention is', async () => {
  const where = await newTenant();
  const terms = {
    retentionStaleAfterSeconds: 3 * 86_400,
    retentionDeleteAfterSeconds: 9e6,
    retentionEventDays: 1,
    retentionReceivedEventDays: 7,
  };
  await retain(where, { config: terms });
  const job = await finishOne(where);
  await sealAll(where, '2 days');
  expect(await retain(where, { config: terms })).toMatchObject({ stale: 0, events: 0 });
  await sealAll(where, '2 days');
  expect(await retain(where, { config: terms })).toMatchObject({ stale: 1, events: 3 });
  expect((await reread(where, job)).staleAt).not.toBeNull();
});

test('once a week all jobs are scanned, also those without events in the log', async () => {
  const where = await newTenant();
  await retain(where);
  await finishOne(where);
  await where.db.query(`delete from ${where.schema}.events`);
  expect(await retain(where)).toMatchObject({ stale: 0 });
  await where.db.query(
    `update ${where.schema}.followers set state = jsonb_build_object('looked_at', now() - interval '8 days') where name = 'retention'`,
  );
  expect(await retain(where, { batch: 1 })).toMatchObject({ stale: 1, complete: true });
  expect(Date.parse((await reader(where)).state.looked_at)).toBeGreaterThan(Date.now() - 3_600_000);
});

test('it starts again in a database that was restored to an earlier time', async () => {
  const where = await newTenant();
  await retain(where);
  await where.db.query(
    `update ${where.schema}.followers set snapshot = '1:1:|1:1:|9000000000000000|1' where name = 'retention'`,
  );
  await finishOne(where);
  expect(await retain(where)).toMatchObject({ stale: 1, complete: true });
});

test("the tenant's own retention applies", async () => {
  const where = await newTenant();
  await addJob(where);
  const { jobs } = await claim(where);
  await finish(where, jobs[0]!);
  const tenant = { ...where.tenant, settings: { retention: { stale_after_seconds: 86_400 } } };
  expect(await retain({ ...where, tenant })).toMatchObject({ stale: 0 });
  const quick = { ...where.tenant, settings: { retention: { stale_after_seconds: 0, delete_after_seconds: 0 } } };
  expect(await retain({ ...where, tenant: quick })).toMatchObject({ stale: 1, deleted: 1 });
});

test('old deliveries, leases, operations and minutes are removed; current counts and active rows stay', async () => {
  const where = await newTenant();
  const s = where.schema;
  const id = 'gen_random_uuid()';
  for (const days of [1, 100]) {
    const then = `now() - interval '${days} days'`;
    await where.db.query(
      `insert into ${s}.webhook_deliveries (id, job_id, event_xid, event_seq, event_type, url, body, state, finished_at)
       values (${id}, ${id}, '1', ${days}, 'job.completed', 'x', '{}', 'delivered', ${then})`,
    );
    await where.db.query(
      `insert into ${s}.leases (id, kind, owner, job_ids, ttl_seconds, state, expires_at, released_at)
       values (${id}, 'remote', 'w', '{}', 1, 'RELEASED', ${then}, ${then})`,
    );
    await where.db.query(
      `insert into ${s}.operations (id, action, filter, status, finished_at) values (${id}, 'cancel', '{}', 'finished', ${then})`,
    );
    for (const queue of ['', 'default']) {
      await where.db.query(
        `insert into ${s}.stat_minutes (queue, minute, wait_buckets, run_buckets)
         values ($1, date_trunc('minute', ${then}), '{}', '{}')`,
        [queue],
      );
    }
  }
  for (const queue of ['', 'default']) {
    await where.db.query(
      `insert into ${s}.stat_minutes (queue, minute, wait_buckets, run_buckets) values ($1, '-infinity', '{}', '{}')`,
      [queue],
    );
  }
  await where.db.query(
    `insert into ${s}.leases (id, kind, owner, job_ids, ttl_seconds, expires_at) values (${id}, 'local', 'w', '{}', 1, now() - interval '200 days')`,
  );
  expect(await retain(where)).toMatchObject({ deliveries: 1, leases: 1, operations: 1, minutes: 2, complete: true });
  expect(await where.db.query(`select 1 from ${s}.leases`)).toHaveLength(2);
  expect(await where.db.query(`select 1 from ${s}.stat_minutes`)).toHaveLength(4);
});

/** One poll of the task `retention`, what it starts, and whether the tenant is idle afterwards. */
function poller(where: TenantContext, terms: Partial<Config>) {
  const { polled, tasks } = createTasks(where.db, [where.tenant], { config: { ...loadConfig({}), ...terms } });
  const task = polled.find(({ name }) => name === 'retention')!;
  return async () => {
    const [found] = (await probeTenants(where.db, [where.tenant], task.probes)).found;
    if (found === undefined) throw new Error('the tenant was not probed');
    await task.onResults([{ ...found, hasNewEvents: true, wasIdle: false }]);
    await tasks.retention.runOnce();
    return task.isIdle(found.results, 1000, where.tenant);
  };
}

test('only rows that reached their age are removed, and the tenant is idle until the next one does', async () => {
  const where = await newTenant();
  const poll = poller(where, { retentionStaleAfterSeconds: 3600 });
  expect(await poll()).toBe(true);
  const job = await addJob(where);
  await finish(where, (await claim(where)).jobs[0]!);
  expect(await poll()).toBe(true);
  expect((await eventTypes(where, job)).at(-1)).toBe('job.completed');
  await age(where, '2 hours');
  expect(await poll()).toBe(false);
  expect((await eventTypes(where, job)).at(-1)).toBe('job.stale');
});

test('a tenant is idle while its old events wait for their jobs to become stale', async () => {
  const where = await newTenant();
  const day = 86_400;
  const terms = {
    retentionStaleAfterSeconds: 60 * day,
    retentionDeleteAfterSeconds: 90 * day,
    retentionEventDays: 30,
    retentionReceivedEventDays: 7,
  };
  const poll = poller(where, terms);
  await finishOne(where);
  await sealAll(where, '40 days');
  await retain(where, { config: terms });
  expect(await poll()).toBe(true);
});

test('rows from before a restore, with transaction ids of the future, are removed as well', async () => {
  const where = await newTenant();
  const poll = poller(where, { retentionStaleAfterSeconds: 3600, retentionDeleteAfterSeconds: 9e6 });
  const job = await finishOne(where);
  await where.db.query(`update ${where.schema}.events set xid = (xid::text::bigint + 9000000000)::text::xid8`);
  await where.db.query(
    `insert into ${where.schema}.event_seals (number, snapshot, event_keys, event_hashes, previous_hash, hash, sealed_at)
     select 1, '1:1:', array_agg(xid || ':' || seq), '', '', '', now() - interval '100 days' from ${where.schema}.events`,
  );
  await where.db.query(
    `insert into ${where.schema}.followers (name, snapshot, state) values ('seals', '1:1:', '{"number": "1", "hash": ""}')`,
  );
  await age(where, '100 days');
  expect(await poll()).toBe(false);
  expect((await reread(where, job)).staleAt).not.toBeNull();
  expect(await where.db.query(`select type from ${where.schema}.events`)).toEqual([{ type: 'job.stale' }]);
  expect(await poll()).toBe(true);
});

test('the first scan finds jobs without events', async () => {
  const where = await newTenant();
  const poll = poller(where, { retentionStaleAfterSeconds: 3600 });
  const job = await finishOne(where);
  await where.db.query(`delete from ${where.schema}.events`);
  expect(await poll()).toBe(true);
  await age(where, '2 hours');
  await where.db.query(`update ${where.schema}.jobs set created_at = created_at - interval '2 hours'`);
  expect(await poll()).toBe(false);
  expect((await reread(where, job)).staleAt).not.toBeNull();
});

test('expired sessions and sign-in links are deleted; valid ones stay', async () => {
  const { db } = context;
  const add = (id: string, kind: string, expires: string) =>
    db.query(
      `insert into leasehold.sessions (id, kind, key_id, key_check, expires_at)
       values ($1, $2, gen_random_uuid(), '\\x00', now() + $3::interval)`,
      [Buffer.from(id), kind, expires],
    );
  await add('expired session', 'session', '-1 second');
  await add('expired link', 'link', '-1 day');
  await add('valid session', 'session', '1 hour');
  const retention = createSessionRetention(db, createLogger('silent'));
  await retention.start();
  retention.wake();
  await retention.stop();
  const rows = await db.query<{ id: Buffer }>('select id from leasehold.sessions order by expires_at');
  expect(rows.map(({ id }) => id.toString())).toEqual(['valid session']);
});

interface PlanNode {
  'Actual Rows': number;
  'Actual Loops': number;
  'Rows Removed by Filter'?: number;
  Plans?: PlanNode[];
}

test('a read of many ends reads each event a few times, also if the planner expects one', async () => {
  const { db, schema } = await newTenant();
  const addEvents = (count: number) =>
    db.query(
      `insert into ${schema}.events (type, job_id, from_status, to_status, actor, at)
       select 'job.completed', gen_random_uuid(), 'RUNNING', 'SUCCESS', 'worker:w', now() - interval '1 day'
         from generate_series(1, $1::int)`,
      [count],
    );
  await addEvents(200);
  await db.query(`analyze ${schema}.events`);
  const [last] = await db.query<{ xid: string; next: string }>(
    `select max(xid::text::bigint)::text as xid, (max(xid::text::bigint) + 1000000)::text as next from ${schema}.events`,
  );
  await addEvents(1000);
  const { text, values } = eventsStatement.bind(schema, {
    xid: last!.xid,
    seq: '9223372036854775807',
    afterSeconds: 0,
    limit: 1000,
    firstInProgress: last!.next,
  });
  const [row] = await db.query<{ 'QUERY PLAN': { Plan: PlanNode }[] }>(
    `explain (analyze, format json) ${text}`,
    values,
  );
  const maxRows = (node: PlanNode): number =>
    Math.max(
      (node['Actual Rows'] + (node['Rows Removed by Filter'] ?? 0)) * node['Actual Loops'],
      ...(node.Plans ?? []).map(maxRows),
    );
  expect(maxRows(row!['QUERY PLAN'][0]!.Plan)).toBe(1000);
});
