// Creates the data for the example of each operation: a path with ids, and ids for its body. Every operation gets
// separate data, so that their order does not matter.
import { requestExamples } from '../../../server/http/request-examples.ts';
import { eventually } from '../eventually.ts';
import type { Body } from './operations.ts';

export type Send = (
  method: string,
  path: string,
  body?: unknown,
  by?: string,
) => Promise<{ status: number; body: Body; text: string }>;

export interface ExampleRequest {
  path: string;
  /** Instead of the ids in the example. */
  replace?: Body;
}

interface Given {
  send: Send;
  admin: string;
  /** A key with every scope. */
  key: string;
  slug: string;
}

const later = { type: 'demo.echo', run_at: '2090-01-01T00:00:00Z' };
const failing = { type: 'demo.fail', payload: { times: 9, recoverable: false } };

export function exampleRequests({ send, admin, key, slug }: Given) {
  let count = 0;
  const next = () => `machine-${count++}`;
  const make = async (path: string, body?: unknown, by?: string, method = 'POST'): Promise<Body> => {
    const made = await send(method, path, body, by);
    if (made.status >= 300) throw new Error(`${method} ${path}: ${made.status} ${made.text}`);
    return made.body;
  };
  const idOf = async (path: string, body: unknown, by?: string) => {
    const made = await make(path, body, by);
    const inner = made.key ?? made.schedule ?? made.operation ?? made.link;
    return String(made.id ?? (inner as Body | undefined)?.id);
  };
  const jobThatBecomes = async (status: string, path: string, body: Body) => {
    const id = await idOf(path, body);
    await eventually(async () => {
      const { body: job } = await send('GET', `/api/jobs/${id}`);
      if (job.status !== status) throw new Error(`job ${id} is ${job.status}`);
    });
    return id;
  };
  const held = (target: string) => jobThatBecomes('ERROR', `/api/targets/${target}/jobs`, failing);
  const ended = (target: string) =>
    jobThatBecomes('SUCCESS', `/api/targets/${target}/jobs`, { type: 'demo.echo', payload: { order: 42 } });
  const claimed = async () => {
    await make('/api/scheduler/jobs/submit', requestExamples.submitSchedulerJobs);
    const { job } = (await make('/api/scheduler/jobs/claim', requestExamples.claimSchedulerJobs)) as { job: Body };
    return String(job.job_id);
  };
  const leased = async () => {
    const jobId = await claimed();
    const request = { ...(requestExamples.requestSchedulerLease as Body), job_id: jobId };
    const { lease } = (await make('/api/scheduler/lease/request', request)) as { lease: Body };
    return { jobId, leaseId: String(lease.lease_id) };
  };
  const ofLease = async (path: string): Promise<ExampleRequest> => {
    const { jobId, leaseId } = await leased();
    return { path: path.replace('{lease_id}', leaseId), replace: { job_id: jobId } };
  };
  const asked = async () => {
    const jobId = await idOf('/api/jobs', { type: 'demo.approval' });
    return eventually(async () => {
      const { questions } = (await send('GET', `/api/questions?job_id=${jobId}`)).body as { questions: Body[] };
      if (questions[0] === undefined) throw new Error('no question yet');
      return String(questions[0].id);
    });
  };
  const delivered = async () => {
    const webhook = { webhook_url: 'https://example.invalid/hook' };
    const jobId = await jobThatBecomes('ERROR', `/api/targets/${next()}/jobs`, { ...failing, ...webhook });
    const deliveryId = await eventually(async () => {
      const { deliveries } = (await send('GET', `/api/jobs/${jobId}/deliveries`)).body as { deliveries: Body[] };
      if (deliveries[0] === undefined) throw new Error('no delivery yet');
      return String(deliveries[0].id);
    });
    return { jobId, deliveryId };
  };
  const schedule = () => idOf('/api/schedules', { ...(requestExamples.createSchedule as Body), name: next() });
  const tenant = async () => {
    const name = `globex_${count++}`;
    await make('/api/admin/tenants', { slug: name }, admin);
    return name;
  };
  const limit = async () => make('/api/limits/per-account', requestExamples.replaceLimit, key, 'PUT');
  const budget = async () => make('/api/budgets/daily', requestExamples.replaceBudget, key, 'PUT');

  const ids = (path: string, values: Record<string, string>): ExampleRequest => ({
    path: path.replaceAll(/\{(\w+)\}/g, (_, name: string) => values[name] ?? `{${name}}`),
  });
  const special: Record<string, (path: string) => Promise<ExampleRequest>> = {
    requestSchedulerLease: async (path) => ({ path, replace: { job_id: await claimed() } }),
    renewSchedulerLease: ofLease,
    releaseSchedulerLease: ofLease,
    askSchedulerLease: ofLease,
    sleepSchedulerLease: ofLease,
    eventSchedulerLease: ofLease,
    stepsSchedulerLease: ofLease,
    callsSchedulerLease: ofLease,
    enqueueSchedulerLease: ofLease,
    childrenSchedulerLease: ofLease,
    suspendSchedulerLease: async (path) => {
      const request = await ofLease(path);
      const event = { ...(requestExamples.eventSchedulerLease as object), ...request.replace, suspend: false };
      await make(request.path.replace('/suspend', '/event'), event);
      return request;
    },
    getSchedulerLease: async (path) => ids(path, { lease_id: (await leased()).leaseId }),
    reportSchedulerJobStatus: async (path) => ids(path, { job_id: await claimed() }),
    claimSchedulerJobs: async (path) => {
      await make('/api/scheduler/jobs/submit', requestExamples.submitSchedulerJobs);
      return { path };
    },
    canaryTarget: async (path) => {
      const target = next();
      await held(target);
      return ids(path, { target_id: target });
    },
    updateTarget: async (path) => {
      await make('/api/targets/labelled', requestExamples.replaceTarget, key, 'PUT');
      return ids(path, { target_id: 'labelled' });
    },
    resumeTarget: async (path) => {
      await make('/api/targets/paused/pause', {});
      return ids(path, { target_id: 'paused' });
    },
    getAttention: async (path) => {
      await held(next());
      return { path };
    },
    getStatsTimeseries: async (path) => ({ path: `${path}?metric=succeeded&range=1h&bucket=30m` }),
    getSchedulerStatsTimeseries: async (path) => ({ path: `${path}?metric=succeeded&range=1h&bucket=30m` }),
    signIn: async (path) => ({ path, replace: { key } }),
    deleteQuestionLink: async (path) => {
      const id = await asked();
      const link = await idOf(`/api/questions/${id}/links`, requestExamples.createQuestionLink);
      return ids(path, { id, link_id: link });
    },
    listQuestionLinks: async (path) => {
      const id = await asked();
      await make(`/api/questions/${id}/links`, requestExamples.createQuestionLink);
      return ids(path, { id });
    },
    getLimits: async (path) => {
      await limit();
      return { path };
    },
    getBudgets: async (path) => {
      await budget();
      return { path };
    },
    listSchedules: async (path) => {
      await schedule();
      return { path };
    },
    listAdminKeys: async (path) => {
      await make('/api/admin/keys', requestExamples.createAdminKey, admin);
      return { path };
    },
    listWebhooksDeliveries: async (path) => {
      await delivered();
      return { path };
    },
    listOperations: async (path) => {
      await make('/api/operations', requestExamples.createOperation);
      return { path };
    },
  };
  for (const id of ['deleteAdminTenant', 'suspendAdminTenant', 'activateAdminTenant'])
    special[id] = async (path) => ids(path, { slug: await tenant() });

  /** By what the path names. */
  const general = async (id: string, path: string): Promise<ExampleRequest> => {
    if (path.includes('/deliveries') && path.includes('{')) {
      const { jobId, deliveryId } = await delivered();
      const target = String((await send('GET', `/api/jobs/${jobId}`)).body.target_id);
      return ids(path, { id: path.startsWith('/api/webhooks') ? deliveryId : jobId, job_id: jobId, target_id: target });
    }
    if (path.startsWith('/api/questions/')) return ids(path, { id: await asked() });
    if (path.startsWith('/api/schedules/{')) return ids(path, { id: await schedule() });
    if (path.startsWith('/api/operations/')) {
      return ids(path, { operation_id: await idOf('/api/operations', requestExamples.createOperation) });
    }
    if (path.startsWith('/api/budgets/')) {
      if (id !== 'replaceBudget') await budget();
      return ids(path, { name: 'daily' });
    }
    if (path.startsWith('/api/limits/')) {
      if (id !== 'replaceLimit') await limit();
      return ids(path, { name: 'per-account' });
    }
    if (path.startsWith('/api/events/{')) return ids(path, { name: 'payment-received' });
    if (path.startsWith('/api/keys/')) return ids(path, { id: await idOf('/api/keys', requestExamples.createKey) });
    if (path.startsWith('/api/admin/keys/')) {
      return ids(path, { id: await idOf('/api/admin/keys', requestExamples.createAdminKey, admin) });
    }
    if (path.startsWith('/api/admin/tenants/{slug}/keys/')) {
      const made = await idOf(`/api/admin/tenants/${slug}/keys`, requestExamples.createAdminTenantKey, admin);
      return ids(path, { slug, id: made });
    }
    if (path.startsWith('/api/scheduler/jobs/{')) {
      const { job } = (await make('/api/scheduler/jobs/submit', requestExamples.submitSchedulerJobs)) as { job: Body };
      return ids(path, { job_id: String(job.job_id) });
    }
    const target = next();
    if (!path.includes('{job_id}')) {
      if (path.includes('{target_id}') && id.startsWith('get')) await held(target);
      return ids(path, { target_id: target, slug });
    }
    const isRead = /^(get|list)/.test(id);
    const isHeld = /^(resume|resolve|skip)/.test(id);
    const job = isRead
      ? await ended(target)
      : isHeld
        ? await held(target)
        : await idOf(`/api/targets/${target}/jobs`, later);
    return ids(path, { target_id: target, job_id: job });
  };
  return (id: string, path: string) => special[id]?.(path) ?? general(id, path);
}
