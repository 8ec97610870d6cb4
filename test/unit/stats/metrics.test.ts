import { expect, test } from 'vitest';
import { Metrics } from '../../../server/stats/metrics.ts';

test('counts without a tenant label unless asked for one', async () => {
  const plain = new Metrics({ perTenant: false, version: '1.2.3' });
  plain.outcomes.add('acme', 'completed');
  plain.outcomes.add('other', 'completed', 2);
  plain.jobsClaimed.add('acme', 5);
  plain.waitSeconds.of('acme').observe(0.2);
  plain.runSeconds.of('acme', 'failed').observe(3);
  const text = await plain.registry.metrics();
  expect(text).toContain('leasehold_job_attempts_total{outcome="completed"} 3');
  expect(text).toContain('leasehold_jobs_claimed_total 5');
  expect(text).toContain('leasehold_job_wait_seconds_bucket{le="0.25"} 1');
  expect(text).toContain('leasehold_build_info{version="1.2.3"} 1');

  const perTenant = new Metrics({ perTenant: true, version: '1' });
  perTenant.outcomes.add('acme', 'completed');
  perTenant.outcomes.add('other', 'completed');
  expect(await perTenant.registry.metrics()).toContain(
    'leasehold_job_attempts_total{tenant="other",outcome="completed"} 1',
  );
});

test('shows the pools and, once started, the delay of the event loop', async () => {
  const pools = () => ({ main: { totalCount: 4, idleCount: 1, waitingCount: 2 } });
  const metrics = new Metrics({ perTenant: false, version: '1', pools });
  await metrics.start();
  await metrics.start();
  metrics.loopDelay.add(250);
  const text = await metrics.registry.metrics();
  await metrics.stop();
  expect(text).toContain('leasehold_database_connections{pool="main",state="waiting"} 2');
  expect(text).toContain('process_cpu_seconds_total');
  expect(text).toMatch(/leasehold_event_loop_delay_seconds\{statistic="p99"\} 0\.25/);
  expect(text).toMatch(/nodejs_eventloop_lag_max_seconds 0\.25/);
  // Of each scrape by itself; a loop that had nothing to do was not late.
  expect(await metrics.registry.metrics()).toContain('nodejs_eventloop_lag_max_seconds 0\n');
});

test('a gauge that is reset drops deleted tenants', async () => {
  const metrics = new Metrics({ perTenant: true, version: '1' });
  metrics.queueJobs.set('gone', 'QUEUED', 3);
  metrics.queueJobs.reset();
  metrics.queueJobs.set('here', 'QUEUED', 1);
  const text = await metrics.registry.metrics();
  expect(text).not.toContain('tenant="gone"');
  expect(text).toContain('leasehold_queue_jobs{tenant="here",status="QUEUED"} 1');
});
