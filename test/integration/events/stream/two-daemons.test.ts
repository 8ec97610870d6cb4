import { expect, it } from 'vitest';
import { z } from 'zod';
import { sealEvents } from '../../../../server/events/seals/seal.ts';
import type { NewJob } from '../../../../server/jobs/enqueue/enqueue.ts';
import { createApiKey } from '../../../../server/tenants/api-keys/key-store.ts';
import { verifyTenant } from '../../../../server/verify/verify-tenant.ts';
import { defineJob } from '../../../../server/worker/handlers/define-job.ts';
import { startDaemon } from '../../../support/daemon/daemon.ts';
import { eventually } from '../../../support/eventually.ts';
import { EventReader } from '../../../support/http/sse.ts';
import { useTenant } from '../../../support/postgres/database.ts';

const context = useTenant();

/** Fails on its first attempt if told so. */
const flaky = defineJob({
  type: 'test.flaky',
  payload: z.object({ fails: z.boolean() }),
  run: async ({ payload, job }) => {
    if (payload.fails && job.attempt === 1) throw Object.assign(new Error('once'), { recoverable: true });
    return { ok: true };
  },
});

it('streams the events of many jobs on two daemons, live and without gaps, and verification finds no violation', async () => {
  const { db, schema, tenant } = context;
  const one = await startDaemon(context, { handlers: [flaky] });
  const two = await startDaemon(context, { handlers: [flaky] });
  const { text: key } = await createApiKey(db, { tenantId: tenant.id, name: 'test', scopes: ['read'] });
  const stream = (id?: string) => EventReader.open(`${one.url}/api/events/stream`, { key, lastEventId: id });
  const reader = await (await stream()).ready();

  const jobs: NewJob[] = Array.from({ length: 120 }, (_, i) => ({
    type: 'test.flaky',
    payload: { fails: i % 10 === 0 },
    maxAttempts: 2,
    ...(i % 5 > 0 && { targetId: `lane-${i % 7}` }),
  }));
  for (let i = 0; i < jobs.length; i += 10) await one.enqueue(tenant, jobs.slice(i, i + 10), 'test');
  const ended = ['job:completed', 'job:failed'];
  await reader.until((r) => r.events.filter((m) => ended.includes(m.event)).length === jobs.length);
  expect(reader.events.some((m) => m.event === 'job:started')).toBe(true);

  const [row] = await db.query<{ count: string }>(`select count(*) from ${schema}.events`);
  await eventually(() => expect(reader.events.length).toBe(Number(row?.count)));
  expect(new Set(reader.events.map((m) => m.data.id)).size).toBe(reader.events.length);

  const stopping = one.stop();
  await reader.until((r) => r.ended);
  expect(reader.messages.at(-1)).toMatchObject({ event: 'closed', data: { reason: 'shutdown' } });
  await stopping;
  await two.stop();
  while (!(await sealEvents(db, schema)).complete);
  const found = await verifyTenant(db, schema);
  expect(found.violations).toEqual([]);
  expect(found).toMatchObject({ jobs: { jobs: jobs.length }, lanes: { targets: 7 }, seals: { unsealedEvents: 0 } });
});

it('ends the streams of a revoked key on every daemon at once, long before their next ping', async () => {
  const { db, tenant } = context;
  const env = { STREAM_PING_SECONDS: '300' };
  const one = await startDaemon(context, { env });
  const two = await startDaemon(context, { env });
  const admin = await createApiKey(db, { tenantId: tenant.id, name: 'admin', scopes: ['admin'] });
  const brief = await createApiKey(db, { tenantId: tenant.id, name: 'brief', scopes: ['read'] });
  const readers = await Promise.all(
    [one, two].map(async ({ url }) =>
      (await EventReader.open(`${url}/api/events/stream`, { key: brief.text })).ready(),
    ),
  );
  const headers = { authorization: `Bearer ${admin.text}` };
  expect((await fetch(`${one.url}/api/keys/${brief.id}`, { method: 'DELETE', headers })).status).toBe(200);
  for (const reader of readers) {
    await reader.until((r) => r.ended);
    expect(reader.messages.at(-1)).toMatchObject({ event: 'closed', data: { reason: 'key_revoked' } });
  }
});
