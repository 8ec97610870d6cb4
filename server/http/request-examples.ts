// A request for each operation, by operationId: the required parameters, and a body if it takes one.
// test/integration/http/examples.test.ts sends each of them to a daemon; the ids are placeholders.

const id = '0190b2a4-5c1e-7d3a-9f10-4a2f6c1b7e55';
const parameters: Record<string, string> = { target_id: 'machine-7', slug: 'acme', metric: 'succeeded' };
const names: Record<string, string> = { events: 'payment-received', limits: 'per-account', budgets: 'daily' };

export function parameterExampleOf(path: string, parameter: string): string {
  const named = parameter === 'name' ? names[path.split('/')[2] ?? ''] : parameters[parameter];
  return named ?? id;
}

const why = { reason: 'The disk was replaced', author: 'ann' };
const job = {
  type: 'demo.echo',
  payload: { order: 42 },
  priority: 'HIGH',
  max_attempts: 3,
  client_request_id: 'order-42',
};
const schedule = {
  name: 'nightly report',
  cron: '0 3 * * *',
  timezone: 'Europe/Berlin',
  job: { type: 'demo.echo', payload: {} },
};
const tenantKey = { name: 'backend', scopes: ['read', 'enqueue'] };

export const requestExamples: Record<string, unknown> = {
  createJob: { ...job, target_id: 'machine-7' },
  createTargetJob: { ...job, client_request_id: 'order-43' },
  batchJobs: {
    atomic: true,
    jobs: [
      { type: 'demo.echo', payload: { n: 1 } },
      { type: 'demo.echo', payload: { n: 2 } },
    ],
  },
  pauseJob: why,
  interruptJob: why,
  cancelJob: why,
  resumeJob: { ...why, token_limit: 50_000 },
  resolveJob: { ...why, result: { done_by: 'hand' } },
  skipJob: why,
  pauseTargetJob: why,
  interruptTargetJob: why,
  cancelTargetJob: why,
  resumeTargetJob: why,
  resolveTargetJob: { ...why, result: { done_by: 'hand' } },
  skipTargetJob: why,
  replaceTarget: { labels: { site: 'Lyon', kind: 'lathe' } },
  updateTarget: { labels: { kind: null, floor: '2' } },
  pauseTarget: { ...why, until: '2090-01-01T00:00:00Z' },
  resumeTarget: why,
  canaryTarget: why,
  createOperation: { action: 'retry', filter: { type: 'demo.fail', status: ['ERROR'] }, canary: true, ...why },
  replaceBudget: { unit: 'cents', limit: 5000, per: 'day' },
  replaceLimit: { type: 'mail.send', rate: 100, per: 'minute', key: 'payload.account' },
  sendEvent: { data: { invoice: 7, amount: 1250 }, id: 'payment-981' },
  createSchedule: schedule,
  updateSchedule: { cron: '30 3 * * *', missed: 'skip' },
  previewSchedules: { cron: '0 8 * * 1-5', timezone: 'Europe/Berlin' },
  answerQuestion: { action: 'approve', answer: { note: 'after the backup' }, author: 'ann' },
  createQuestionLink: { recipient: 'ann@example.com', expires_in_seconds: 86_400 },
  createKey: tenantKey,
  rotateKey: { overlap_seconds: 3600 },
  createAdminKey: { name: 'operations' },
  rotateAdminKey: { overlap_seconds: 3600 },
  createAdminTenant: { slug: 'globex', settings: { concurrency: 20 } },
  updateAdminTenant: { settings: { concurrency: 10, capacity_units: null } },
  createAdminTenantKey: tenantKey,
  rotateAdminTenantKey: { overlap_seconds: 3600 },
  submitSchedulerJobs: { addon_id: 'render', job_type: 'render.frame', payload: { frame: 7 }, cost_units: 2 },
  claimSchedulerJobs: { addon_id: 'render', worker_id: 'gpu-1', limit: 1 },
  requestSchedulerLease: { job_id: id, worker_id: 'gpu-1', ttl_sec: 30 },
  renewSchedulerLease: { job_id: id, worker_id: 'gpu-1', progress: 0.4, message: 'frame 7 of 18' },
  askSchedulerLease: {
    job_id: id,
    worker_id: 'gpu-1',
    name: 'approve',
    title: 'Render at full size?',
    actions: [{ name: 'Yes' }, { name: 'No' }],
  },
  sleepSchedulerLease: { job_id: id, worker_id: 'gpu-1', name: 'cool down', position: 1, seconds: 3600 },
  eventSchedulerLease: { job_id: id, worker_id: 'gpu-1', name: 'paid', event: 'invoice.paid', match: { invoice: 7 } },
  suspendSchedulerLease: { job_id: id, worker_id: 'gpu-1', call: 'paid' },
  callsSchedulerLease: { job_id: id, worker_id: 'gpu-1' },
  stepsSchedulerLease: {
    job_id: id,
    worker_id: 'gpu-1',
    steps: [{ name: 'charge', position: 0, parallel: false, status: 'completed', result: { receipt: 'r-17' } }],
  },
  enqueueSchedulerLease: { job_id: id, worker_id: 'gpu-1', key: '1', job_type: 'render.frame', addon_id: 'render' },
  childrenSchedulerLease: {
    job_id: id,
    worker_id: 'gpu-1',
    name: 'frames',
    concurrency: 10,
    jobs: [
      { job_type: 'render.frame', addon_id: 'render', payload: { frame: 1 } },
      { job_type: 'render.frame', addon_id: 'render', payload: { frame: 2 } },
    ],
  },
  reportSchedulerJobStatus: { state: 'PREPARING', worker_id: 'gpu-1', note: 'loading the scene' },
  releaseSchedulerLease: { job_id: id, worker_id: 'gpu-1', status: 'SUCCEEDED', result_data: { frames: 1 } },
  cancelSchedulerJob: { reason: 'not needed any more' },
  enableWebhooks: { url: 'https://example.com/hook' },
  rotateWebhooksSecret: { keep_previous: true },
  signIn: { key: 'lh_0190b2a45c1e7d3a_your-key' },
};
