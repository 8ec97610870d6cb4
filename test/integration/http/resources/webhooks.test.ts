import { expect, test } from 'vitest';
import { webhookRoutes } from '../../../../server/http/resources/webhooks.ts';
import { createDeliveries } from '../../../../server/webhooks/outbox.ts';
import { useApp } from '../../../support/http/app.ts';
import { addJob, claim, finish } from '../../../support/jobs.ts';
import { addTenant, useTenant } from '../../../support/postgres/database.ts';

const context = useTenant();
const woken: string[] = [];
const app = useApp(context, (deps) => ({
  routes: [webhookRoutes({ db: deps.db, registry: deps.registry, wake: (slug) => woken.push(slug) })],
}));

async function fill(): Promise<void> {
  while (!(await createDeliveries(context.db, context.tenant)).complete);
}

test('deliveries are listed, read and resent; those of other tenants are not found', async () => {
  const key = await app.keyFor(context.tenant.id);
  const get = (path: string) => app.request('GET', path, { key });
  const job = await addJob(context, { webhookUrl: 'https://example.com/hook' });
  const { jobs } = await claim(context);
  await finish(context, jobs[0]!);
  await fill();
  const list = await get('/api/webhooks/deliveries');
  expect(list.body).toMatchObject({
    deliveries: [{ job_id: job.id, event_type: 'job.completed', state: 'pending', attempts: 0 }],
    next_cursor: null,
  });
  const [delivery] = list.body.deliveries;
  expect(delivery.event_id).toMatch(/^\d+$/);
  expect((await get(`/api/jobs/${job.id}/deliveries`)).body.deliveries).toEqual([delivery]);
  const { body, ...shown } = (await get(`/api/webhooks/deliveries/${delivery.id}`)).body.delivery;
  expect(shown).toEqual(delivery);
  expect(body).toMatchObject({ type: 'job.completed', data: { job_id: job.id } });
  expect((await get('/api/webhooks/deliveries?state=failed')).body.deliveries).toEqual([]);
  expect((await get('/api/webhooks/deliveries?state=nope')).status).toBe(400);
  const path = `/api/webhooks/deliveries/${delivery.id}/resend`;
  expect((await app.request('POST', path, { key })).status).toBe(202);
  expect(woken).toEqual([context.tenant.slug]);
  const other = await addTenant(context.db, 'other');
  await app.deps.registry.refresh();
  const theirs = await app.keyFor(other.tenant.id);
  expect((await app.request('POST', path, { key: theirs })).status).toBe(404);
  expect((await app.request('GET', `/api/jobs/${job.id}/deliveries`, { key: theirs })).body.deliveries).toEqual([]);
});

test('secrets are shown and rotated with the scope admin', async () => {
  const admin = await app.keyFor(context.tenant.id, ['admin']);
  const first = await app.request('GET', '/api/webhooks/secret', { key: admin });
  expect(first.body.secrets).toHaveLength(1);
  expect(first.body.secrets[0]).toMatch(/^whsec_/);
  const rotated = await app.request('POST', '/api/webhooks/secret/rotate', { key: admin });
  expect(rotated.body.secrets).toEqual([expect.stringMatching(/^whsec_/), first.body.secrets[0]]);
  const cut = await app.request('POST', '/api/webhooks/secret/rotate', { key: admin, body: { keep_previous: false } });
  expect(cut.body.secrets).toHaveLength(1);
  const reader = await app.keyFor(context.tenant.id, ['read']);
  expect((await app.request('GET', '/api/webhooks/secret', { key: reader })).status).toBe(403);
});

test('a URL that answered 410 can be enabled again', async () => {
  const key = await app.keyFor(context.tenant.id, ['control']);
  const answer = await app.request('POST', '/api/webhooks/enable', { key, body: { url: 'https://example.com/gone' } });
  expect(answer.body).toEqual({ held_back: 0 });
});
