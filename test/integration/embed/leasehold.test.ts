// Leasehold as a part of another program, by its public API alone.
import { expect, onTestFinished, test } from 'vitest';
import { z } from 'zod';
import { createLeasehold, type LeaseholdOptions, type Problem } from '../../../server/embed/index.ts';
import { findJob } from '../../../server/jobs/read/read-jobs.ts';
import { defineJob } from '../../../server/worker/handlers/define-job.ts';
import { eventually } from '../../support/eventually.ts';
import { addTenant, useTenant } from '../../support/postgres/database.ts';

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

test('runs jobs between start and stop, and leaves the process to its host', async () => {
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
  const worker = await create({ settings: { pollIntervalSeconds: 3600 } });
  await worker.start();
  const handle = await sender.enqueue(tenant, 'greet', { name: 'Cy' }, { idempotencyKey: 'cy' });
  const again = await sender.enqueue(tenant, 'greet', { name: 'Cy' }, { idempotencyKey: 'cy' });
  expect(again).toEqual({ ...handle, replayed: true });
  await eventually(async () => expect((await read(handle.id))?.status).toBe('SUCCESS'));
});

test('several instances in one process run the jobs of their own', async () => {
  const other = defineJob({ type: 'other', run: () => 'other' });
  const [first, second] = [await create(), await create({ jobs: [other] })];
  await Promise.all([first.start(), second.start()]);
  const handles = [await second.enqueue(tenant, greet, { name: 'D' }), await first.enqueue(tenant, other, null)];
  const succeeded = (id: string) => eventually(async () => expect((await read(id))?.status).toBe('SUCCESS'));
  for (const { id } of handles) await succeeded(id);
  await first.stop();
  await succeeded((await second.enqueue(tenant, other, {})).id);
});

test('creates the tenants that are wanted, once', async () => {
  const [first, second] = [await create({ tenants: ['wanted'] }), await create({ tenants: ['wanted'] })];
  await Promise.all([first.start(), second.start()]);
  const { slug } = (await first.tenants.list()).find((one) => one.slug === 'wanted') ?? {};
  expect(slug).toBe('wanted');
  await first.tenants.configure('wanted', { max_queued: 0 });
  await expect(first.enqueue('wanted', greet, { name: 'E' })).rejects.toMatchObject({ code: 'QUEUE_FULL' });
});

test('refuses what it cannot do, and says why', async () => {
  await expect(createLeasehold({ databaseUrl: '' })).rejects.toThrow('needs a databaseUrl');
  await expect(create({ settings: { leaseSeconds: 1 } })).rejects.toThrow('LEASE_SECONDS=1 is not allowed');
  await expect(create({ settings: { leaseSecond: 1 } as never })).rejects.toThrow('leaseSecond is not a setting');
  await expect(create({ jobs: [greet, greet] })).rejects.toThrow('two handlers');
  const leasehold = await create();
  const refusal = (work: Promise<unknown>) => work.then(() => undefined).catch((error: Problem) => error.code);
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
