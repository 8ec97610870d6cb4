import { expect, test } from 'vitest';
import { scopes } from '../../../server/tenants/api-keys/key.ts';
import { createApiKey } from '../../../server/tenants/api-keys/key-store.ts';
import { fastSettings, startDaemon } from '../../support/daemon/daemon.ts';
import { eventually } from '../../support/eventually.ts';
import { useReceiver } from '../../support/http/receiver.ts';
import { useTenant } from '../../support/postgres/database.ts';

const context = useTenant();
const receiver = useReceiver();

test('a daemon sends the webhook of a job, counts it, and is listed', async () => {
  const daemon = await startDaemon(context, { env: { WEBHOOK_ALLOW_PRIVATE: 'true' } });
  const { text } = await createApiKey(context.db, { tenantId: context.tenant.id, name: 'test', scopes });
  // biome-ignore lint/suspicious/noExplicitAny: tests read answers as a client without types would.
  const ask = async (path: string, key = text, init: RequestInit = {}): Promise<any> => {
    const headers = { authorization: `Bearer ${key}`, 'content-type': 'application/json' };
    return (await fetch(daemon.url + path, { ...init, headers })).json();
  };
  const body = JSON.stringify({ type: 'demo.echo', payload: {}, webhook_url: `${receiver.url}/hook` });
  const job = await ask('/api/jobs', text, { method: 'POST', body });
  await eventually(() => expect(receiver.received.map((r) => r.body.data.job_id)).toEqual([job.id]));
  await eventually(async () => expect((await ask(`/api/jobs/${job.id}`)).webhook_sent).toBe(true));
  await eventually(async () => expect((await ask('/api/stats/jobs')).counts).toMatchObject({ SUCCESS: 1, QUEUED: 0 }));
  const { workers } = await ask('/api/admin/workers', fastSettings.ADMIN_API_KEY);
  expect(workers).toMatchObject([{ id: daemon.config.workerId, state: 'alive' }]);
  const metrics = await (await fetch(`${daemon.url}/metrics`)).text();
  expect(metrics).toContain('leasehold_job_attempts_total{outcome="completed"} 1');
  expect(metrics).toContain('leasehold_webhook_attempts_total{outcome="delivered"} 1');
});
