// A tenant with one of everything that a path can name, all of it marked with a text that no other tenant may read.
import { randomUUID } from 'node:crypto';
import type { Database } from '../../../server/database/database.ts';
import { scopes } from '../../../server/tenants/api-keys/key.ts';
import { createApiKey } from '../../../server/tenants/api-keys/key-store.ts';
import type { Tenant } from '../../../server/tenants/tenant.ts';
import { eventually } from '../eventually.ts';
import type { Body } from './operations.ts';

export interface FilledTenant {
  tenant: Tenant;
  /** A key with every scope. */
  key: string;
  marker: string;
  jobId: string;
  /** The value of a parameter in a path. */
  idIn(path: string, name: string): string;
}

export async function fillTenant(
  { db, url, adminKey }: { db: Database; url: string; adminKey: string },
  tenant: Tenant,
): Promise<FilledTenant> {
  const marker = `marked-${tenant.slug}`;
  const { text: key } = await createApiKey(db, { tenantId: tenant.id, name: marker, scopes });
  const send = async (method: string, path: string, body?: unknown, by = key): Promise<Body> => {
    const response = await fetch(url + path, {
      method,
      headers: { authorization: `Bearer ${by}`, 'content-type': 'application/json' },
      ...(body !== undefined && { body: JSON.stringify(body) }),
    });
    const text = await response.text();
    if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${text}`);
    return JSON.parse(text) as Body;
  };
  const idOf = async (path: string, body: unknown, name = 'id') => {
    const made = await send('POST', path, body);
    return String((made[name] as Body | undefined)?.id ?? made.id);
  };
  const admin = `/api/admin/tenants/${tenant.slug}`;
  await send('PATCH', admin, { settings: { remote_job_types: ['*'] } }, adminKey);
  const payload = { note: marker };
  // Not the marker itself, which answers repeat with the path of the request.
  const target = `machine-of-${tenant.slug}`;
  await send('PUT', `/api/targets/${target}`, { labels: payload });
  // It fails: its target is held, and the event is delivered to an address that nothing answers.
  const failing = { type: 'demo.fail', payload: { ...payload, times: 9, recoverable: false } };
  const jobId = await idOf(`/api/targets/${target}/jobs`, { ...failing, webhook_url: `https://${marker}.invalid/` });
  const scheduled = { name: marker, cron: '0 3 1 1 *', job: { type: 'demo.echo', payload } };
  const scheduleId = await idOf('/api/schedules', scheduled, 'schedule');
  const operation = { action: 'cancel', filter: { type: marker }, reason: marker };
  const operationId = await idOf('/api/operations', operation, 'operation');
  const keyId = await idOf('/api/keys', { name: marker, scopes: ['read'] }, 'key');
  await send('POST', '/api/scheduler/jobs/submit', { addon_id: marker, job_type: 'render', payload });
  const claimed = await send('POST', '/api/scheduler/jobs/claim', { addon_id: marker, worker_id: marker });
  const remoteJobId = String((claimed.job as Body).job_id);
  const granted = await send('POST', '/api/scheduler/lease/request', {
    job_id: remoteJobId,
    worker_id: marker,
    ttl_sec: 3600,
  });
  const leaseId = String((granted.lease as Body | undefined)?.lease_id ?? granted.lease_id);
  const limit = `limit-of-${tenant.slug}`;
  await send('PUT', `/api/limits/${limit}`, { type: marker, concurrency: 1 });
  const asking = await send('POST', '/api/jobs', { type: 'demo.approval', payload: { question: marker } });
  const questionId = await eventually(async () => {
    const { questions } = (await send('GET', '/api/questions')) as { questions: Body[] };
    if (questions[0] === undefined) throw new Error('no question yet');
    return String(questions[0].id);
  });
  const deliveryId = await eventually(async () => {
    const { deliveries } = (await send('GET', `/api/jobs/${jobId}/deliveries`)) as { deliveries: Body[] };
    if (deliveries[0] === undefined) throw new Error('no delivery yet');
    return String(deliveries[0].id);
  });
  // The daemon has nothing left to do for the tenant: from here on only requests change it.
  await eventually(async () => {
    for (const [path, status] of [
      [`/api/jobs/${jobId}`, 'ERROR'],
      [`/api/jobs/${asking.id}`, 'WAITING'],
      [`/api/operations/${operationId}`, 'finished'],
    ] as const) {
      const { status: found } = await send('GET', path);
      if (found !== status) throw new Error(`${path} is ${found}`);
    }
  });
  const idIn = (path: string, name: string): string => {
    if (name === 'slug') return tenant.slug;
    if (name === 'target_id') return target;
    if (name === 'lease_id') return leaseId;
    if (name === 'operation_id') return operationId;
    if (name === 'job_id') return path.startsWith('/api/scheduler') ? remoteJobId : jobId;
    if (name === 'name') return limit;
    if (path.startsWith('/api/questions')) return questionId;
    if (path.startsWith('/api/jobs')) return jobId;
    if (path.startsWith('/api/schedules')) return scheduleId;
    if (path.startsWith('/api/webhooks')) return deliveryId;
    if (path.startsWith('/api/keys') || path.startsWith(`/api/admin/tenants`)) return keyId;
    // Of an operator: nothing that a tenant has.
    return randomUUID();
  };
  return { tenant, key, marker, jobId, idIn };
}
