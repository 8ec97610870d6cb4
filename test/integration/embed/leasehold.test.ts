// Leasehold as a part of another program, by its public API alone.
import pg from 'pg';
import { expect, expectTypeOf, onTestFinished, test } from 'vitest';
import { z } from 'zod';
import {
  createLeasehold,
  type FinishedJob,
  isProblem,
  type LeaseholdOptions,
  type LeaseholdSettings,
  type TenantOptions,
} from '../../../server/embed/index.ts';
import { cancelJob } from '../../../server/jobs/actions/pause-and-cancel.ts';
import { enqueue } from '../../../server/jobs/enqueue/enqueue.ts';
import { findJob } from '../../../server/jobs/read/read-jobs.ts';
import type { Config } from '../../../server/kernel/config.ts';
import { createLogger } from '../../../server/kernel/logger.ts';
import { runRetentionOnce } from '../../../server/maintenance/retention.ts';
import type { TenantSettings } from '../../../server/tenants/tenant.ts';
import { defineJob } from '../../../server/worker/handlers/define-job.ts';
import { eventually } from '../../support/eventually.ts';
import { addTenant, listenSettings, useTenant } from '../../support/postgres/database.ts';

const context = useTenant();
const tenant = 'acme';

const greet = defineJob({
  type: 'greet',
  payload: z.object({ name: z.string() }),
  run: ({ payload }) => ({ text: `Hello ${payload.name}` }),
});

async function create(options: Partial<LeaseholdOptions> = {}) {
  const leasehold = await createLeasehold({ databaseUrl: context.url, jobs: [greet], logger: false, ...options });
  onTestFinished(() => leasehold.stop({ graceSeconds: 0 }));
  return leasehold;
}

const read = async (id: string, schema = context.schema) => findJob(context.db, schema, id);

test('runs jobs between start and stop, and leaves signals and exit to its host', async () => {
  const signals = ['SIGTERM', 'SIGINT', 'SIGHUP', 'uncaughtException', 'unhandledRejection', 'exit', 'warning'];
  // pino has one for all loggers of the process, for as long as the garbage collector leaves any.
  const listeners = () =>
    signals.map((name) => process.listeners(name as NodeJS.Signals).filter((one) => one.name !== 'onExit').length);
  const before = listeners();
  const leasehold = await create();
  await leasehold.start();
  const handle = await leasehold.enqueue(tenant, greet, { name: 'Ada' }, { targetId: 'desk', priority: 'HIGH' });
  expect(handle).toMatchObject({ tenant, type: 'greet', replayed: false });
  await eventually(async () => {
    expect(await read(handle.id)).toMatchObject({ status: 'SUCCESS', result: { text: 'Hello Ada' }, targetId: 'desk' });
  });
  expect(listeners()).toEqual(before);
  await Promise.all([leasehold.stop(), leasehold.stop()]);
  await expect(leasehold.enqueue(tenant, greet, { name: 'Bea' })).rejects.toThrow();
});

test('enqueues without a start, and wakes the process that runs jobs', async () => {
  const sender = await create({ jobs: [] });
  const worker = await create({ settings: { pollIntervalSeconds: 3600, ...listenSettings(context) } });
  await worker.start();
  const handle = await sender.enqueue(tenant, 'greet', { name: 'Cy' }, { idempotencyKey: 'cy' });
  const again = await sender.enqueue(tenant, 'greet', { name: 'Cy' }, { idempotencyKey: 'cy' });
  expect(again).toEqual({ ...handle, replayed: true });
  await eventually(async () => expect((await read(handle.id))?.status).toBe('SUCCESS'));
});

test('several instances in one process each run their own jobs', async () => {
  const other = defineJob({ type: 'other', run: () => 'other' });
  const [first, second] = [await create(), await create({ jobs: [other] })];
  await Promise.all([first.start(), second.start()]);
  const handles = [await second.enqueue(tenant, greet, { name: 'D' }), await first.enqueue(tenant, other, null)];
  const succeeded = (id: string) => eventually(async () => expect((await read(id))?.status).toBe('SUCCESS'));
  for (const { id } of handles) await succeeded(id);
  await first.stop();
  await succeeded((await second.enqueue(tenant, other, {})).id);
});

test('creates the missing tenants, once', async () => {
  const [first, second] = [await create({ tenants: ['wanted'] }), await create({ tenants: ['wanted'] })];
  await Promise.all([first.start(), second.start()]);
  const { slug } = (await first.tenants.list()).find((one) => one.slug === 'wanted') ?? {};
  expect(slug).toBe('wanted');
  await first.tenants.configure('wanted', { max_queued: 0 });
  await expect(first.enqueue('wanted', greet, { name: 'E' })).rejects.toMatchObject({ code: 'QUEUE_FULL' });
});

test('refuses invalid calls with a reason', async () => {
  await expect(createLeasehold({ databaseUrl: '' })).rejects.toThrow('needs a databaseUrl or a pool');
  await expect(create({ settings: { leaseSeconds: 1 } })).rejects.toThrow('LEASE_SECONDS=1 is not allowed');
  await expect(create({ settings: { leaseSecond: 1 } as never })).rejects.toThrow('leaseSecond is not a setting');
  await expect(create({ jobs: [greet, greet] })).rejects.toThrow('two handlers');
  const leasehold = await create();
  const refusal = (work: Promise<unknown>) =>
    work.then(() => undefined).catch((error) => (isProblem(error) ? error.code : error));
  expect(await refusal(leasehold.enqueue('nobody', greet, { name: 'F' }))).toBe('NOT_FOUND');
  expect(await refusal(leasehold.enqueue(tenant, 'unknown', {}))).toBe('UNKNOWN_JOB_TYPE');
  expect(await refusal(leasehold.enqueue(tenant, greet, { name: 7 } as never))).toBe('INVALID_FIELD');
  expect(await refusal(leasehold.enqueue(tenant, greet, { name: 'a\u0000' }))).toBe('INVALID_FIELD');
  expect(await refusal(leasehold.enqueue(tenant, greet, { name: 1n } as never))).toBe('INVALID_FIELD');
  expect(await refusal(leasehold.enqueue(tenant, greet, { name: 'F' }, { targetId: '..' }))).toBe('INVALID_FIELD');
  const { tenant: suspended } = await addTenant(context.db, 'idle');
  await context.db.query(`update leasehold.tenants set status = 'SUSPENDED', updated_at = now() where id = $1`, [
    suspended.id,
  ]);
  expect(await refusal(leasehold.enqueue('idle', greet, { name: 'F' }))).toBe('TENANT_SUSPENDED');
});

test('log lines go to the logger of the host', async () => {
  const lines: { level: string; fields: Record<string, unknown>; message: string | undefined }[] = [];
  const write = (level: string) => (fields: object, message?: string) =>
    void lines.push({ level, fields: fields as Record<string, unknown>, message });
  const logger = { debug: write('debug'), info: write('info'), warn: write('warn'), error: write('error') };
  const leasehold = await create({ logger, settings: { workerId: 'mine' } });
  await leasehold.start();
  const running = lines.find(({ message }) => message === 'daemon is running');
  expect(running).toMatchObject({ level: 'info', fields: { worker: 'mine', types: ['greet'] } });
  expect(lines.some(({ level }) => level === 'debug')).toBe(false);
});

test('a stop ends a start that waits for its database', async () => {
  const leasehold = await create({ databaseUrl: 'postgres://nobody@127.0.0.1:1/none' });
  const starting = leasehold.start();
  await leasehold.stop();
  await starting;
});

test('uses the address of a pool of the host, but not its connections', async () => {
  const url = new URL(context.url);
  const [user, password] = [decodeURIComponent(url.username), decodeURIComponent(url.password)];
  const address = { host: url.hostname, port: Number(url.port), user, password, database: url.pathname.slice(1) };
  for (const pool of [new pg.Pool(address), new pg.Pool({ connectionString: context.url })]) {
    const leasehold = await create({ databaseUrl: undefined, pool });
    const { id } = await leasehold.enqueue(tenant, greet, { name: 'G' });
    expect((await read(id))?.type).toBe('greet');
    expect(pool.totalCount).toBe(0);
    await pool.end();
  }
  const signer = new pg.Pool({ ...address, password: () => 'token' });
  await expect(create({ databaseUrl: undefined, pool: signer })).rejects.toThrow('pass databaseUrl too');
});

test('listeners get the events of all tenants and processes, in order, and may fail', async () => {
  await addTenant(context.db, 'loud');
  const [listening, other] = [await create(), await create({ jobs: [] })];
  await listening.start();
  const events: string[] = [];
  const all: string[] = [];
  const remove = listening.on('job.completed', (event) => {
    events.push(`${event.tenant} ${event.jobId} ${event.from} ${event.to}`);
    throw new Error('a listener that fails');
  });
  listening.on('*', async ({ tenant: slug, type }) => void all.push(`${slug} ${type}`));
  // Listeners get events from about the time of their registration; the first delivery shows that they have begun.
  await eventually(async () => {
    await listening.enqueue(tenant, greet, { name: 'before' });
    expect(all).not.toEqual([]);
  });
  const first = await other.enqueue('loud', 'greet', { name: 'H' });
  const second = await listening.enqueue(tenant, greet, { name: 'I' });
  // Other tests leave jobs to this tenant, which end here too.
  const own = () =>
    events.filter((line) => line.includes(first.id) || line.startsWith('loud') || line.includes(second.id));
  await eventually(async () => {
    expect(own().sort()).toEqual([`loud ${first.id} RUNNING SUCCESS`, `${tenant} ${second.id} RUNNING SUCCESS`].sort());
    const ofLoud = all.filter((line) => line.startsWith('loud'));
    expect(ofLoud).toEqual(['loud job.enqueued', 'loud job.started', 'loud job.completed']);
  });
  remove();
  await listening.enqueue('loud', greet, { name: 'J' });
  await eventually(async () => expect(all.filter((line) => line === 'loud job.completed')).toHaveLength(2));
  expect(own()).toHaveLength(2);
});

test('a job is deleted only after its copy was kept', async () => {
  const { tenant: kept, schema } = await addTenant(context.db, 'kept');
  const seen: string[] = [];
  let fails = true;
  const hooks = {
    onStale: (slug: string, jobs: FinishedJob[]) => void seen.push(...jobs.map(({ id }) => `${slug} stale ${id}`)),
    onDelete: async (slug: string, jobs: FinishedJob[]) => {
      seen.push(...jobs.map(({ id, payload, status }) => `${slug} ${status} ${JSON.stringify(payload)} ${id}`));
      if (fails) throw new Error('no space for copies');
    },
  };
  const [created] = await enqueue(context.db, schema, [{ type: 'greet', payload: { a: 1 } }], 'test');
  const id = created?.job.id ?? '';
  await cancelJob(context.db, schema, { jobId: id, actor: 'test' });
  const config = {
    retentionStaleAfterSeconds: 0,
    retentionDeleteAfterSeconds: 0,
    retentionEventDays: 90,
    retentionReceivedEventDays: 7,
  };
  const run = () =>
    runRetentionOnce(context.db, kept, { config, actor: 'test', logger: createLogger('silent'), hooks });
  await eventually(async () => {
    await run();
    expect(seen).toContain(`kept stale ${id}`);
    expect(seen).toContain(`kept CANCELED {"a":1} ${id}`);
  });
  expect(await read(id, schema)).toBeDefined();
  fails = false;
  expect(await run()).toMatchObject({ deleted: 1, complete: true });
  expect(await read(id, schema)).toBeUndefined();
  expect(seen.filter((line) => line.startsWith('kept stale'))).toHaveLength(1);
});

test('payloads are typed by the definition', async () => {
  const leasehold = await create();
  const typed = defineJob({ type: 'typed', payload: z.object({ at: z.coerce.date() }), run: () => 1 });
  expectTypeOf(leasehold.enqueue<typeof greet>)
    .parameter(2)
    .toEqualTypeOf<{ name: string }>();
  // @ts-expect-error a name is a text
  await expect(leasehold.enqueue(tenant, greet, { name: 1 })).rejects.toMatchObject({ code: 'INVALID_FIELD' });
  // @ts-expect-error in a list too
  const many = leasehold.enqueueMany(tenant, [{ job: greet, payload: { nam: 'x' } }]);
  await expect(many).rejects.toMatchObject({ code: 'INVALID_FIELD' });
  // What is enqueued is the input of the schema, not what the handler gets.
  expectTypeOf(leasehold.enqueue<typeof typed>)
    .parameter(2)
    .toEqualTypeOf<{ at: unknown }>();
});

test('settings are those of the table, except those that the host decides', () => {
  type HostDecides = 'host' | 'port' | 'databaseUrl' | 'dataDir' | 'handlers' | 'demoTenant';
  type Wanted = { -readonly [K in keyof Omit<Config, HostDecides>]?: Config[K] | undefined };
  expectTypeOf<LeaseholdSettings>().toEqualTypeOf<Wanted>();
  expectTypeOf<TenantOptions>().toEqualTypeOf<TenantSettings>();
});
