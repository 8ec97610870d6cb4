// Sends every example of the API's document to a daemon: each body is accepted as it stands, apart from the ids in it.
import { expect, it } from 'vitest';
import { requestExamples } from '../../../server/http/openapi.ts';
import { scopes } from '../../../server/tenants/api-keys/key.ts';
import { createApiKey } from '../../../server/tenants/api-keys/key-store.ts';
import { fastSettings, useDaemon } from '../../support/daemon/daemon.ts';
import { eventually } from '../../support/eventually.ts';
import { useTenant } from '../../support/postgres/database.ts';

const context = useTenant();
const running = useDaemon(context);
const admin = fastSettings.ADMIN_API_KEY as string;

type Body = Record<string, unknown>;
interface Entry {
  method: string;
  path: string;
  operation: {
    operationId: string;
    requestBody?: { content: Record<string, { example?: unknown }> };
    responses: object;
  };
}

async function send(method: string, path: string, key: string, body?: unknown, headers: Record<string, string> = {}) {
  const response = await fetch(running.daemon.url + path, {
    method,
    headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json', ...headers },
    ...(body !== undefined && { body: JSON.stringify(body) }),
  });
  const text = await response.text();
  return { status: response.status, body: (text === '' ? {} : JSON.parse(text)) as Body, text };
}

it('accepts the example of every operation that takes a body', async () => {
  const { text: key } = await createApiKey(context.db, {
    tenantId: context.tenant.id,
    name: 'all',
    scopes: [...scopes],
  });
  const make = async (path: string, body: unknown, by = key) => {
    const made = await send('POST', path, by, body);
    expect(made.status, `${path} ${made.text}`).toBeLessThan(300);
    return made.body;
  };
  await send('PATCH', `/api/admin/tenants/${context.tenant.slug}`, admin, { settings: { remote_job_types: ['*'] } });
  const waiting = async () =>
    String((await make('/api/jobs', { type: 'demo.echo', run_at: '2090-01-01T00:00:00Z' })).id);
  const held = async (target: string) => {
    const failing = { type: 'demo.fail', payload: { times: 9, recoverable: false } };
    const id = String((await make(`/api/targets/${target}/jobs`, failing)).id);
    await eventually(async () => expect((await send('GET', `/api/jobs/${id}`, key)).body.status).toBe('ERROR'));
    return id;
  };
  const waitingOn = async (target: string) =>
    String((await make(`/api/targets/${target}/jobs`, { type: 'demo.echo', run_at: '2090-01-01T00:00:00Z' })).id);
  const idOf = async (path: string, body: unknown, by = key) => {
    const made = await make(path, body, by);
    return String(made.id ?? (made.key as Body | undefined)?.id ?? (made.schedule as Body | undefined)?.id);
  };
  let count = 0;
  const next = () => `example-${count++}`;
  /** A claimed job of a remote worker, and its lease. */
  const leased = async () => {
    await make('/api/scheduler/jobs/submit', requestExamples.submitSchedulerJobs);
    const { job } = (await make('/api/scheduler/jobs/claim', requestExamples.claimSchedulerJobs)) as { job: Body };
    return String(job.job_id);
  };
  const withLease = async () => {
    const jobId = await leased();
    const lease = await make('/api/scheduler/lease/request', {
      ...(requestExamples.requestSchedulerLease as Body),
      job_id: jobId,
    });
    return { jobId, leaseId: String((lease.lease as Body | undefined)?.lease_id ?? lease.lease_id) };
  };
  const asked = async () => {
    const jobId = await idOf('/api/jobs', { type: 'demo.approval' });
    return eventually(async () => {
      const { questions } = (await send('GET', `/api/questions?job_id=${jobId}`, key)).body as { questions: Body[] };
      expect(questions).toHaveLength(1);
      return String(questions[0]?.id);
    });
  };
  const slug = context.tenant.slug;

  /** The path of each operation with ids in it, and what the example needs instead of its own ids. */
  const prepare: Record<string, (path: string) => Promise<{ path: string; replace?: Body }>> = {
    requestSchedulerLease: async (path) => ({ path, replace: { job_id: await leased() } }),
    renewSchedulerLease: async (path) => {
      const { jobId, leaseId } = await withLease();
      return { path: path.replace('{lease_id}', leaseId), replace: { job_id: jobId } };
    },
    releaseSchedulerLease: async (path) => {
      const { jobId, leaseId } = await withLease();
      return { path: path.replace('{lease_id}', leaseId), replace: { job_id: jobId } };
    },
    askSchedulerLease: async (path) => {
      const { jobId, leaseId } = await withLease();
      return { path: path.replace('{lease_id}', leaseId), replace: { job_id: jobId } };
    },
    reportSchedulerJobStatus: async (path) => ({ path: path.replace('{job_id}', await leased()) }),
    claimSchedulerJobs: async (path) => {
      await make('/api/scheduler/jobs/submit', requestExamples.submitSchedulerJobs);
      return { path };
    },
    canaryTarget: async (path) => {
      const target = next();
      await held(target);
      return { path: path.replace('{target_id}', target) };
    },
    updateTarget: async (path) => {
      await send('PUT', '/api/targets/labelled', key, requestExamples.replaceTarget);
      return { path: path.replace('{target_id}', 'labelled') };
    },
    resumeTarget: async (path) => {
      await make('/api/targets/paused/pause', {});
      return { path: path.replace('{target_id}', 'paused') };
    },
    rotateKey: async (path) => ({ path: path.replace('{id}', await idOf('/api/keys', requestExamples.createKey)) }),
    rotateAdminKey: async (path) => ({
      path: path.replace('{id}', await idOf('/api/admin/keys', requestExamples.createAdminKey, admin)),
    }),
    rotateAdminTenantKey: async (path) => {
      const made = await idOf(`/api/admin/tenants/${slug}/keys`, requestExamples.createAdminTenantKey, admin);
      return { path: path.replace('{slug}', slug).replace('{id}', made) };
    },
    updateSchedule: async (path) => {
      const named = { ...(requestExamples.createSchedule as Body), name: 'weekly' };
      return { path: path.replace('{id}', await idOf('/api/schedules', named)) };
    },
    answerQuestion: async (path) => ({ path: path.replace('{id}', await asked()) }),
    replaceBudget: async (path) => ({ path: path.replace('{name}', 'daily') }),
    replaceLimit: async (path) => ({ path: path.replace('{name}', 'per-account') }),
    createQuestionLink: async (path) => ({ path: path.replace('{id}', await asked()) }),
    signIn: async (path) => ({ path, replace: { key } }),
  };
  const general = async (id: string, path: string) => {
    const isHeld = /^(resume|resolve|skip)/.test(id);
    const target = next();
    const job = !path.includes('{job_id}')
      ? ''
      : isHeld
        ? await held(target)
        : path.includes('{target_id}')
          ? await waitingOn(target)
          : await waiting();
    return {
      path: path.replace('{target_id}', target).replace('{job_id}', job).replace('{slug}', slug),
    };
  };

  const document = (await (await fetch(`${running.daemon.url}/openapi.json`)).json()) as {
    paths: Record<string, Record<string, Entry['operation']>>;
  };
  const sent: string[] = [];
  for (const [path, methods] of Object.entries(document.paths)) {
    for (const [method, operation] of Object.entries(methods)) {
      if (operation.requestBody === undefined) continue;
      const id = operation.operationId;
      const example = operation.requestBody.content['application/json']?.example as Body | undefined;
      expect(example, `${id} has no example`).toBeDefined();
      const ready = (await prepare[id]?.(path)) ?? (await general(id, path));
      const body: Body = { ...example, ...(ready as { replace?: Body }).replace };
      const by = path.startsWith('/api/admin') ? admin : key;
      const origin = id === 'signIn' ? { origin: running.daemon.url } : undefined;
      const answer = await send(method.toUpperCase(), ready.path, by, body, origin);
      expect(Object.keys(operation.responses), `${id} ${answer.text}`).toContain(String(answer.status));
      expect(answer.status, `${id} ${answer.text}`).toBeLessThan(300);
      sent.push(id);
    }
  }
  expect(sent.sort()).toEqual(Object.keys(requestExamples).sort());
});
