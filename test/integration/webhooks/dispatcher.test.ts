import { Webhook } from 'standardwebhooks';
import { afterEach, beforeEach, expect, onTestFinished, test, vi } from 'vitest';
import { resumeJob } from '../../../server/jobs/actions/resume.ts';
import { queueDueJobs } from '../../../server/jobs/finish/due-jobs.ts';
import { answerQuestion } from '../../../server/jobs/questions/answer.ts';
import { createLogger } from '../../../server/kernel/logger.ts';
import { PerTenantTask } from '../../../server/maintenance/per-tenant-task.ts';
import { TenantRegistry } from '../../../server/tenants/registry.ts';
import { getTenant, updateTenantSettings } from '../../../server/tenants/tenant-store.ts';
import { rotateWebhookSecrets } from '../../../server/tenants/webhook-secrets.ts';
import { enableAddress, listDeliveries, listJobDeliveries, resendDelivery } from '../../../server/webhooks/delivery.ts';
import { type DispatcherOptions, WebhookDispatcher } from '../../../server/webhooks/dispatcher.ts';
import { eventually } from '../../support/eventually.ts';
import { answer, hang, useReceiver } from '../../support/http/receiver.ts';
import { addJob, claim, eventTypes, finish, reread } from '../../support/jobs.ts';
import { useTenantPerTest } from '../../support/postgres/database.ts';
import { askQuestion, plainCall } from '../../support/questions.ts';

const context = useTenantPerTest();
const receiver = useReceiver();
const logger = createLogger('silent');
const outcomes: string[] = [];
let registry: TenantRegistry;
let webhooks: ReturnType<typeof create>;

/** The dispatcher as a daemon runs it, in a task that a test can run by hand. */
function create(options: Partial<DispatcherOptions> = {}) {
  const dispatcher = new WebhookDispatcher({
    db: context.db,
    logger,
    workerId: 'w1',
    allowPrivate: true,
    concurrency: 20,
    timeoutMs: 60_000,
    maxAttempts: 3,
    observe: (_tenant, outcome) => outcomes.push(outcome),
    onSetAside: () => {},
    onSlotFree: (slug) => task.runNow(slug),
    ...options,
  });
  const task = new PerTenantTask({
    name: 'webhooks',
    registry,
    logger,
    busyMs: 20,
    idleMs: 1200,
    concurrency: 4,
    runForTenant: (tenant, run) => dispatcher.runForTenant(tenant, run),
    onStop: () => dispatcher.stop(),
  });
  /** Handles the tenant's events, sends what is due and awaits the answers. */
  const runOnce = async () => {
    const signal = new AbortController().signal;
    const tenant = registry.bySlug(context.tenant.slug)!;
    for (let result = 'more'; result === 'more'; ) result = await dispatcher.runForTenant(tenant, { signal });
    await dispatcher.drain();
  };
  return { task, runOnce };
}

beforeEach(async () => {
  registry = new TenantRegistry(context.db, logger);
  await registry.refresh();
  webhooks = create();
  outcomes.length = 0;
});
afterEach(() => webhooks.task.stop());

async function completed(given: Parameters<typeof addJob>[1]) {
  const job = await addJob(context, given);
  const { jobs } = await claim(context);
  const mine = jobs.find((j) => j.id === job.id)!;
  await finish(context, mine, { kind: 'complete', result: { big: 1, text: 'é' } });
  return job;
}
const of = (path: string) => receiver.received.filter((r) => r.path === path);
const deliveriesOf = (job: { id: string }) => listJobDeliveries(context.db, context.schema, job.id, 100);
async function dueNow(): Promise<void> {
  await context.db.query(`update ${context.schema}.webhook_deliveries set next_at = now() where state = 'pending'`);
}

test('sends the end of a job once, signed, and then records it on the job in a later event', async () => {
  const job = await completed({ webhookUrl: `${receiver.url}/end`, targetId: 'printer', clientRequestId: 'r1' });
  expect(await reread(context, job)).toMatchObject({ webhookSent: false });
  await webhooks.runOnce();
  await webhooks.runOnce();
  const [message, ...more] = of('/end');
  expect(more).toEqual([]);
  const secrets = (await getTenant(context.db, context.tenant.slug)).webhookSecrets;
  const verified = new Webhook(secrets[0] as string).verify(message!.text, message!.headers as Record<string, string>);
  expect(verified).toMatchObject({
    type: 'job.completed',
    data: {
      tenant: context.tenant.slug,
      job_id: job.id,
      job_type: 'demo.echo',
      target_id: 'printer',
      status: 'SUCCESS',
      attempt: 1,
      client_request_id: 'r1',
      result: { big: 1, text: 'é' },
    },
  });
  expect(await reread(context, job)).toMatchObject({ webhookSent: true, status: 'SUCCESS' });
  expect(await eventTypes(context, job)).toEqual([
    'job.enqueued',
    'job.started',
    'job.completed',
    'job.webhook_delivered',
  ]);
  expect(await deliveriesOf(job)).toMatchObject([{ state: 'delivered', attempts: 1, lastStatus: 204 }]);
  expect(outcomes).toEqual(['delivered']);
});

test("the signed timestamp is the database's time, not that of an application clock that is wrong", async () => {
  await completed({ webhookUrl: `${receiver.url}/clock` });
  vi.useFakeTimers({ toFake: ['Date'], now: Date.now() + 606_000 });
  onTestFinished(() => void vi.useRealTimers());
  await webhooks.runOnce();
  const [message] = of('/clock');
  const [row] = await context.db.query<{ off: number }>('select abs(extract(epoch from now()) - $1)::float8 as off', [
    Number(message!.headers['webhook-timestamp']),
  ]);
  expect(row!.off).toBeLessThan(300);
});

test("the tenant's URL is used if the job has none, for the events that the tenant selected", async () => {
  await updateTenantSettings(context.db, context.tenant.slug, {
    webhook: { url: `${receiver.url}/tenant`, events: ['job.started', 'job.completed', 'job.webhook_delivered'] },
  });
  await registry.refresh();
  const job = await completed({});
  for (let i = 0; i < 4; i++) await webhooks.runOnce();
  expect(of('/tenant').map((r) => r.body.type)).toEqual(['job.started', 'job.completed']);
  expect(of('/tenant').every((r) => r.body.data.job_id === job.id)).toBe(true);
});

test('a question, its reminder, its escalation and its answer are reported, each with what is asked and of whom', async () => {
  const { db, schema } = context;
  const { id } = await addJob(context, { webhookUrl: `${receiver.url}/people` });
  const job = (await claim(context)).jobs.find((one) => one.id === id)!;
  const escalation = { assignees: ['boss'], after_seconds: 120 };
  const asked = await askQuestion(context, job, { assignees: ['ann'], reminders: [60], escalate_to: escalation });
  const question = asked?.status === 'open' ? asked.questionId : '';
  const waiting = { kind: 'question', step: plainCall.name, question } as const;
  await finish(context, job, { kind: 'suspend', waiting, leftMs: 60_000, awaited: { steps: [plainCall.name] } });
  for (let n = 0; n < 2; n++) {
    await db.query(
      `update ${schema}.questions
          set escalate_at = escalate_at - interval '61 seconds',
              remind_at = array(select t - interval '61 seconds' from unnest(remind_at) as t)`,
    );
    await db.query(`update ${schema}.jobs set run_at = now() where id = $1`, [id]);
    await queueDueJobs(db, schema, 'test');
  }
  await answerQuestion(db, schema, { questionId: question, author: 'boss', actor: 'key:1' });
  for (let n = 0; n < 6; n++) await webhooks.runOnce();
  const reports = of('/people').map(({ body }) => [
    body.type,
    body.data.question?.title,
    body.data.question?.assignees,
  ]);
  expect(reports).toEqual([
    ['question.asked', 'Go on?', ['ann']],
    ['question.reminded', 'Go on?', ['ann']],
    ['question.escalated', 'Go on?', ['boss']],
    ['question.answered', 'Go on?', ['boss']],
  ]);
  expect(of('/people').at(-1)?.body.data).toMatchObject({
    job_id: id,
    answered_by: 'boss',
    question: { id: question },
  });
});

test('during a rotation both secrets sign', async () => {
  const before = (await getTenant(context.db, context.tenant.slug)).webhookSecrets[0] as string;
  const secrets = await rotateWebhookSecrets(context.db, context.tenant.id, { keepPrevious: true });
  expect(secrets).toHaveLength(2);
  expect(secrets[1]).toBe(before);
  await registry.refresh();
  await completed({ webhookUrl: `${receiver.url}/rotated` });
  await webhooks.runOnce();
  const [message] = of('/rotated');
  const headers = message!.headers as Record<string, string>;
  for (const secret of secrets) expect(new Webhook(secret).verify(message!.text, headers)).toBeTruthy();
  expect(await rotateWebhookSecrets(context.db, context.tenant.id, { keepPrevious: false })).toHaveLength(1);
});

test('a delivery is retried after a failure, then given up; a person can resend it', async () => {
  receiver.on('/broken', answer(500));
  const job = await completed({ webhookUrl: `${receiver.url}/broken` });
  for (let i = 0; i < 5; i++) {
    await webhooks.runOnce();
    await dueNow();
  }
  expect(of('/broken')).toHaveLength(3);
  expect(new Set(of('/broken').map((r) => r.headers['webhook-id'])).size).toBe(1);
  const [delivery] = await deliveriesOf(job);
  expect(delivery).toMatchObject({ state: 'failed', attempts: 3, lastStatus: 500 });
  expect(delivery?.tries.map((each) => each.status)).toEqual([500, 500, 500]);
  expect(await eventTypes(context, job)).toContain('job.webhook_failed');
  expect((await reread(context, job)).webhookSent).toBe(false);
  receiver.on('/broken', answer(200));
  await resendDelivery(context.db, context.schema, delivery!.id);
  await webhooks.runOnce();
  expect((await reread(context, job)).webhookSent).toBe(true);
  expect(outcomes).toEqual(['retried', 'retried', 'failed', 'delivered']);
});

test('a later event of a job waits for the earlier one', async () => {
  const path = '/ordered';
  receiver.on(path, answer(503));
  const job = await addJob(context, { webhookUrl: receiver.url + path });
  const first = await claim(context);
  // Where the error comes from is for the tenant's own eyes.
  const trace = { stack: 'Error: no\n    at secret.ts', cause: { message: 'inner' }, errors: [{ message: 'one' }] };
  await finish(context, first.jobs[0]!, { kind: 'fail', error: { code: 'HANDLER_ERROR', message: 'no', ...trace } });
  await resumeJob(context.db, context.schema, { jobId: job.id, actor: 'user:ann' });
  const second = await claim(context);
  await finish(context, second.jobs[0]!);
  await webhooks.runOnce();
  await webhooks.runOnce();
  expect(of(path).map((r) => r.body.type)).toEqual(['job.failed']);
  receiver.on(path, answer(204));
  for (let i = 0; i < 3; i++) {
    await dueNow();
    await webhooks.runOnce();
  }
  expect(of(path).map((r) => r.body.type)).toEqual(['job.failed', 'job.failed', 'job.completed']);
  expect(of(path)[0]!.body.data.error).toEqual({ code: 'HANDLER_ERROR', message: 'no' });
});

test('a 410 disables the URL until a person enables it again', async () => {
  const url = `${receiver.url}/gone`;
  receiver.on('/gone', answer(410));
  const first = await completed({ webhookUrl: url });
  await webhooks.runOnce();
  const second = await completed({ webhookUrl: url });
  await webhooks.runOnce();
  expect(of('/gone')).toHaveLength(1);
  expect(await deliveriesOf(first)).toMatchObject([{ state: 'disabled', lastStatus: 410 }]);
  expect(await deliveriesOf(second)).toMatchObject([{ state: 'disabled' }]);
  receiver.on('/gone', answer(204));
  expect(await enableAddress(context.db, context.schema, url)).toBe(2);
  const third = await completed({ webhookUrl: url });
  await webhooks.runOnce();
  expect(await deliveriesOf(third)).toMatchObject([{ state: 'delivered' }]);
});

test('private addresses are refused without a retry, unless allowed', async () => {
  await webhooks.task.stop();
  webhooks = create({ allowPrivate: false });
  const job = await completed({ webhookUrl: `${receiver.url}/inside` });
  await webhooks.runOnce();
  expect(of('/inside')).toEqual([]);
  expect(await deliveriesOf(job)).toMatchObject([
    { state: 'failed', lastError: 'the address does not lead to a public host' },
  ]);
});

test('stopping awaits deliveries in flight, and another daemon picks up the rest', async () => {
  let release: () => void = () => {};
  const held = new Promise<void>((resolve) => {
    release = resolve;
  });
  receiver.on('/slow', (_request, response) => void held.then(() => response.writeHead(200).end()));
  await webhooks.task.stop();
  webhooks = create({ concurrency: 1 });
  const a = await completed({ webhookUrl: `${receiver.url}/slow` });
  await webhooks.task.start();
  webhooks.task.wake(context.tenant.slug);
  await eventually(() => expect(of('/slow')).toHaveLength(1));
  const b = await completed({ webhookUrl: `${receiver.url}/slow` });
  const stopped = webhooks.task.stop();
  release();
  await stopped;
  expect((await reread(context, a)).webhookSent).toBe(true);
  expect((await reread(context, b)).webhookSent).toBe(false);
  webhooks = create();
  await webhooks.runOnce();
  expect((await reread(context, b)).webhookSent).toBe(true);
});

test('several dispatchers send each delivery once', async () => {
  const others = [create(), create(), create()];
  for (let i = 0; i < 10; i++) await completed({ webhookUrl: `${receiver.url}/crowd` });
  for (let i = 0; i < 4; i++) await Promise.all(others.map((d) => d.runOnce()));
  await eventually(async () => {
    await Promise.all(others.map((d) => d.runOnce()));
    expect(of('/crowd')).toHaveLength(10);
  });
  await Promise.all(others.map((d) => d.task.stop()));
});

test('a receiver that hangs leaves slots for others, and its lock prevents a second try', async () => {
  receiver.on('/hang', hang);
  await webhooks.task.stop();
  webhooks = create({ concurrency: 8, timeoutMs: 5000 });
  await completed({ webhookUrl: `${receiver.url}/hang` });
  const job = await completed({ webhookUrl: `${receiver.url}/quick` });
  await webhooks.task.start();
  webhooks.task.wake(context.tenant.slug);
  await eventually(async () => expect((await reread(context, job)).webhookSent).toBe(true));
  await eventually(() => expect(outcomes).toContain('retried'));
  expect(of('/hang')).toHaveLength(1);
});

test('deliveries are listed newest first, by state, in pages', async () => {
  const jobs = [];
  for (let i = 0; i < 5; i++) jobs.push(await completed({ webhookUrl: `${receiver.url}/list` }));
  await webhooks.runOnce();
  const first = await listDeliveries(context.db, context.schema, { limit: 2 });
  const second = await listDeliveries(context.db, context.schema, { limit: 2, before: first.next });
  const third = await listDeliveries(context.db, context.schema, { limit: 2, before: second.next });
  const all = [...first.deliveries, ...second.deliveries, ...third.deliveries];
  expect(all).toHaveLength(5);
  expect(third.next).toBeUndefined();
  expect(await listDeliveries(context.db, context.schema, { limit: 2, state: 'failed' })).toEqual({
    deliveries: [],
    next: undefined,
  });
  const delivered = await listDeliveries(context.db, context.schema, { limit: 10, state: 'delivered' });
  expect(delivered.deliveries).toHaveLength(5);
});
