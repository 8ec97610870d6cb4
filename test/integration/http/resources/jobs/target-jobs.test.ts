// Logs and deliveries of a job, read under its target.
import { expect, test } from 'vitest';
import { jobLogRoutes } from '../../../../../server/http/resources/jobs/job-logs.ts';
import { webhookRoutes } from '../../../../../server/http/resources/webhooks.ts';
import { appendLogs } from '../../../../../server/jobs/attempt/logs.ts';
import { createDeliveries } from '../../../../../server/webhooks/outbox.ts';
import { useApp } from '../../../../support/http/app.ts';
import { addJob, claim, finish } from '../../../../support/jobs.ts';
import { useTenant } from '../../../../support/postgres/database.ts';

const context = useTenant();
const app = useApp(context, ({ db, registry }) => ({
  routes: [jobLogRoutes(), webhookRoutes({ db, registry, wake: () => {} })],
}));

test('logs and deliveries are found under the target of the job, and under no other', async () => {
  const { db, schema, tenant } = context;
  const key = await app.keyFor(tenant.id);
  const job = await addJob(context, { targetId: 'robot', webhookUrl: 'https://example.com/hook' });
  const [running] = (await claim(context)).jobs;
  const line = { level: 'info' as const, message: 'hello', ageMs: 0 };
  await appendLogs(db, schema, { jobId: job.id, leaseId: running!.leaseId as string }, [line]);
  await finish(context, running!);
  for (let round = 0; round < 5; round++) await createDeliveries(db, tenant);
  const get = (path: string) => app.request('GET', path, { key });
  for (const base of [`/api/jobs/${job.id}`, `/api/targets/robot/jobs/${job.id}`]) {
    expect((await get(`${base}/logs`)).body.lines).toMatchObject([{ message: 'hello' }]);
    expect((await get(`${base}/deliveries`)).body.deliveries).toMatchObject([{ event_type: 'job.completed' }]);
  }
  for (const part of ['logs', 'deliveries']) {
    expect((await get(`/api/targets/other/jobs/${job.id}/${part}`)).status).toBe(404);
  }
});
