// Every request that each page of the dashboard sends when it opens, and those of its filters.

export interface ScaleSample {
  heldJob: string;
  doneJob: string;
  heldTarget: string;
}

export interface PageRequest {
  page: string;
  path: string;
  /** With an operator's key. */
  operator?: boolean;
}

const metrics = [
  'enqueued',
  'succeeded',
  'failed',
  'queued',
  'running',
  'oldest_age',
  'wait_p50',
  'wait_p95',
  'run_p50',
  'run_p95',
  'leases_expired',
];

export function requestsOfPages({ heldJob, doneJob, heldTarget }: ScaleSample): PageRequest[] {
  const of = (page: string, ...paths: string[]): PageRequest[] => paths.map((path) => ({ page, path }));
  const series = (range: string, bucket: string) =>
    metrics.map((metric) => `/api/stats/timeseries?metric=${metric}&range=${range}&bucket=${bucket}`);
  return [
    ...of('Overview', '/api/attention', '/api/attention/count', '/api/stats/snapshot', ...series('1h', '1m')),
    ...of('Overview, 7 d', ...series('7d', '2h')),
    ...of(
      'Targets',
      '/api/lanes?show=all&limit=50',
      '/api/lanes?show=held&limit=50',
      '/api/lanes?show=running&limit=50',
      '/api/lanes?show=paused&limit=50',
      '/api/lanes?show=all&search=9999&limit=50',
    ),
    ...of(
      'Target',
      `/api/targets/${heldTarget}`,
      `/api/targets/${heldTarget}/jobs?limit=30&status=SUCCESS,PARTIAL,CANCELED,ERROR`,
    ),
    ...of(
      'Jobs',
      '/api/jobs?limit=100',
      '/api/jobs?held=true&limit=100',
      '/api/jobs?status=RUNNING,CLAIMED,PREPARING,LEASE_PENDING&limit=100',
      '/api/jobs?status=QUEUED,PENDING&limit=100',
      '/api/jobs?status=ERROR&limit=100',
      '/api/jobs?status=SUCCESS,PARTIAL&limit=100',
      '/api/jobs?status=CANCELED&limit=100',
      '/api/jobs?type=scale.b&limit=100',
      '/api/jobs?priority=URGENT&queue=q1&limit=100',
      '/api/jobs?status=ERROR&type=scale.b&limit=100',
    ),
    ...of(
      'Job',
      `/api/jobs/${heldJob}`,
      `/api/jobs/${heldJob}/events?limit=1000`,
      `/api/jobs/${heldJob}/why`,
      `/api/jobs/${heldJob}/logs?limit=500`,
      `/api/jobs/${doneJob}`,
      `/api/jobs/${doneJob}/why`,
    ),
    ...of('Workers', '/api/workers', '/api/stats/zombies?limit=50'),
    ...of('Schedules', '/api/schedules?limit=200'),
    ...of('Webhooks', '/api/webhooks/deliveries?limit=100', '/api/webhooks/deliveries?state=failed&limit=100'),
    ...of('Events', '/api/events?limit=200', '/api/events?type=target.paused&limit=200'),
    ...of('Operations', '/api/operations?limit=50'),
    ...of('Capacity', '/api/scheduler/stats/snapshot', '/api/stats/queues?limit=200', '/api/scheduler/stats/capacity'),
    { page: 'Tenants', path: '/api/admin/tenants?limit=200', operator: true },
    { page: 'Settings', path: '/api/admin/tenants/scale/settings', operator: true },
    { page: 'Workers', path: '/api/admin/workers', operator: true },
  ];
}
