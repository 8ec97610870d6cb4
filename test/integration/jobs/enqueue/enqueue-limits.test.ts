// `max_queued` applies to every caller, and a daemon counts once for all of them.
import { expect, test } from 'vitest';
import type { Daemon } from '../../../../server/daemon/daemon.ts';
import { QueueLimit } from '../../../../server/jobs/enqueue/enqueue-limits.ts';
import { createSchedule } from '../../../../server/schedules/change-schedule.ts';
import { fireDueSchedules } from '../../../../server/schedules/fire-schedules.ts';
import { scopes } from '../../../../server/tenants/api-keys/key.ts';
import { createApiKey } from '../../../../server/tenants/api-keys/key-store.ts';
import { updateTenantSettings } from '../../../../server/tenants/tenant-store.ts';
import { defineJob } from '../../../../server/worker/handlers/define-job.ts';
import { HandlerRegistry } from '../../../../server/worker/handlers/handler-registry.ts';
import { startDaemon } from '../../../support/daemon/daemon.ts';
import { eventually } from '../../../support/eventually.ts';
import { addJob, reread } from '../../../support/jobs.ts';
import { useTenantPerTest } from '../../../support/postgres/database.ts';

const context = useTenantPerTest();
const later = '2199-01-01T00:00:00Z';
const echo = defineJob({ type: 'echo', run: () => null });

/** The tenant's limit, and a way to post as one of its keys. */
async function limitTo(max_queued: number) {
  const { db, tenant } = context;
  context.tenant = await updateTenantSettings(db, tenant.slug, { max_queued });
  const { text } = await createApiKey(db, { tenantId: tenant.id, name: 'test', scopes });
  return async (daemon: Daemon, path: string, body: object = {}) => {
    const headers = { authorization: `Bearer ${text}`, 'content-type': 'application/json' };
    const answer = await fetch(daemon.url + path, { method: 'POST', headers, body: JSON.stringify(body) });
    return { status: answer.status, body: (await answer.json()) as Record<string, unknown> };
  };
}

test('all routes of a daemon share one count', async () => {
  const post = await limitTo(3);
  const daemon = await startDaemon(context, { handlers: [echo] });
  const answers = await Promise.all(
    [1, 2, 3, 4].flatMap(() => [
      post(daemon, '/api/jobs', { type: 'echo', run_at: later }),
      post(daemon, '/api/scheduler/jobs/submit', { addon_id: 'a', job_type: 'b' }),
    ]),
  );
  expect(answers.map((answer) => answer.status).sort()).toEqual([201, 201, 201, 429, 429, 429, 429, 429]);
  expect(answers.find((answer) => answer.status === 429)?.body).toMatchObject({ code: 'QUEUE_FULL', max_queued: 3 });
});

test('children beyond the limit are refused with an error that a handler can catch, or that is retried', async () => {
  await limitTo(1);
  const caught: unknown[] = [];
  const parent = defineJob({
    type: 'parent',
    async run({ enqueue, job }) {
      await enqueue('echo', {}, { runAt: later });
      await enqueue('echo', {}, { runAt: later }).catch((error) => {
        caught.push(error);
        if (job.targetId === 'lets-it-go') throw error;
      });
    },
  });
  await startDaemon(context, { handlers: [echo, parent] });
  const first = await addJob(context, { type: 'parent' });
  await eventually(async () => expect((await reread(context, first)).status).toBe('SUCCESS'));
  expect(caught).toMatchObject([{ name: 'Recoverable', code: 'QUEUE_FULL', details: { max_queued: 1 } }]);
  const second = await addJob(context, { type: 'parent', targetId: 'lets-it-go' });
  await eventually(async () =>
    expect(await reread(context, second)).toMatchObject({ status: 'ERROR', error: { code: 'QUEUE_FULL' } }),
  );
  const [row] = await context.db.query<{ n: number }>(
    `select count(*)::int as n from ${context.schema}.jobs where parent_id is not null`,
  );
  expect(row?.n).toBe(1);
});

test('a schedule beyond the limit creates no job and records why; a manual run is refused', async () => {
  const { db, schema } = context;
  const post = await limitTo(1);
  await addJob(context, { runAt: later });
  const job = { type: 'echo' };
  const schedule = await createSchedule(
    db,
    schema,
    { name: 's', cron: '0 * * * *', timezone: 'UTC', missed: 'latest', job },
    'user:ann',
  );
  await db.query(`update ${schema}.schedules set next_at = now() - interval '1 minute'`);
  const firing = { db, jobTypes: new HandlerRegistry([echo]), queueLimit: new QueueLimit(db) };
  expect(await fireDueSchedules(firing, context.tenant)).toBe(0);
  const events = await db.query(`select data from ${schema}.events where type = 'schedule.failed'`);
  expect(events).toMatchObject([{ data: { schedule_id: schedule.id, code: 'QUEUE_FULL' } }]);
  const daemon = await startDaemon(context, { handlers: [echo] });
  const answer = await post(daemon, `/api/schedules/${schedule.id}/run`);
  expect(answer).toMatchObject({ status: 429, body: { code: 'QUEUE_FULL' } });
});
