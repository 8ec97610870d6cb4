// All metrics of this daemon, for Prometheus: one object, created by the composition root. Labels are few and bounded:
// never a job, a target or an address; the tenant only with METRICS_PER_TENANT.
import { createHistogram } from 'node:perf_hooks';
import { Counter, collectDefaultMetrics, Gauge, Registry } from 'prom-client';
import type { ReportSetAside } from '../events/log/set-aside.ts';
import { maxTimerMs } from '../kernel/limits.ts';
import type { Logger } from '../kernel/logger.ts';
import type { Service } from '../kernel/service.ts';
import { LabelledCounter, LabelledGauge, LabelledHistogram, type MetricOptions } from './labelled.ts';

export type JobOutcome =
  | 'completed'
  | 'partial'
  | 'failed'
  | 'retried'
  | 'paused'
  | 'canceled'
  | 'suspended'
  | 'requeued'
  | 'lost';
type ClaimResult = 'some' | 'none' | 'error';
type RenewalResult = 'renewed' | 'error';
type SweepKind = 'leases' | 'expired' | 'orphans' | 'lanes' | 'targets' | 'retention';
type WebhookOutcome = 'delivered' | 'retried' | 'failed' | 'disabled';
export type DrainResult = 'clean' | 'grace_over' | 'forced';

interface PoolUse {
  totalCount: number;
  idleCount: number;
  waitingCount: number;
}

interface MetricsOptions {
  perTenant: boolean;
  version: string;
  /** Gauges by name, read at every scrape. */
  pools?: () => Record<string, PoolUse>;
}

// From the latency of a wake-up to a job of hours. Wait and run times have the same buckets, so that they can be
// compared.
const durationBuckets = [0.005, 0.025, 0.1, 0.25, 1, 2.5, 10, 30, 60, 300, 900, 3600, 14_400];

export class Metrics implements Service {
  readonly name = 'metrics';
  readonly registry = new Registry();
  readonly perTenant: boolean;

  /** Claim statements, by whether they found work. */
  readonly claims: LabelledCounter<ClaimResult>;
  readonly jobsClaimed: LabelledCounter<never>;
  /** The time from `run_at` of a job to its start. */
  readonly waitSeconds: LabelledHistogram<never>;
  readonly runSeconds: LabelledHistogram<JobOutcome>;
  readonly outcomes: LabelledCounter<JobOutcome>;
  /** Jobs running in this process. */
  readonly running: LabelledGauge<never>;
  readonly renewals: LabelledCounter<RenewalResult>;
  readonly lostLeases: LabelledCounter<never>;
  /** The number of passes of periodic tasks, and the number of jobs or rows that they changed. */
  readonly limitedOpened: LabelledCounter<never>;
  readonly sweeps: LabelledCounter<SweepKind>;
  readonly swept: LabelledCounter<SweepKind>;
  /** Jobs whose lease expired. */
  readonly zombies: LabelledCounter<never>;
  /** Handlers that did not stop in time: fenced off, or released while still running. */
  readonly unresponsiveHandlers: LabelledCounter<'fenced' | 'released'>;
  readonly drains: Counter<'result'>;
  readonly draining: Gauge;
  readonly loopBlocked: Counter;
  readonly loopBlockedSeconds: Counter;
  readonly webhooks: LabelledCounter<WebhookOutcome>;
  readonly webhookSeconds: LabelledHistogram<never>;
  /** Events that a follower could not process and skipped. */
  readonly setAside: LabelledCounter<string>;
  readonly queueJobs: LabelledGauge<string>;
  readonly oldestSeconds: LabelledGauge<never>;

  readonly loopDelay: LoopDelay;
  #defaults = false;

  constructor(options: MetricsOptions) {
    this.perTenant = options.perTenant;
    const at: MetricOptions = { registry: this.registry, perTenant: options.perTenant };
    this.claims = new LabelledCounter(at, 'claims_total', 'Claim statements, by result (some, none, error).', 'result');
    this.jobsClaimed = new LabelledCounter(at, 'jobs_claimed_total', 'Jobs claimed by this daemon.');
    this.waitSeconds = new LabelledHistogram(
      at,
      'job_wait_seconds',
      'From the time a job may run to its start.',
      durationBuckets,
    );
    this.runSeconds = new LabelledHistogram(
      at,
      'job_run_seconds',
      'How long attempts ran.',
      durationBuckets,
      'outcome',
    );
    this.outcomes = new LabelledCounter(
      at,
      'job_attempts_total',
      'Attempts that ended in this daemon, by outcome.',
      'outcome',
    );
    this.running = new LabelledGauge(at, 'jobs_running', 'Jobs running in this daemon.');
    this.renewals = new LabelledCounter(
      at,
      'lease_renewals_total',
      'Lease renewals, by result (renewed, error).',
      'result',
    );
    this.lostLeases = new LabelledCounter(at, 'leases_lost_total', 'Attempts stopped because their lease was lost.');
    this.limitedOpened = new LabelledCounter(
      at,
      'limited_jobs_opened_total',
      'Jobs that passed their limits for this daemon.',
    );
    this.sweeps = new LabelledCounter(at, 'sweeps_total', 'Passes of periodic tasks, by kind.', 'kind');
    this.swept = new LabelledCounter(at, 'swept_total', 'Jobs or rows changed by periodic tasks, by kind.', 'kind');
    this.zombies = new LabelledCounter(at, 'zombies_total', 'Jobs recovered from an expired lease.');
    this.unresponsiveHandlers = new LabelledCounter(
      at,
      'unresponsive_handlers_total',
      'Handlers that did not stop in time, by what was done (fenced, released).',
      'result',
    );
    this.drains = counter(at, 'drains_total', 'Shutdowns, by result (clean, grace_over, forced).', ['result']);
    this.draining = gauge(at, 'draining', '1 while this daemon is draining.');
    this.loopBlocked = counter(at, 'event_loop_blocked_total', 'Times the event loop was found blocked.');
    this.loopBlockedSeconds = counter(at, 'event_loop_blocked_seconds_total', 'Time the event loop was found blocked.');
    this.webhooks = new LabelledCounter(at, 'webhook_attempts_total', 'Webhooks sent, by outcome.', 'outcome');
    this.webhookSeconds = new LabelledHistogram(
      at,
      'webhook_seconds',
      'Response time of webhook receivers.',
      webhookBuckets,
    );
    this.setAside = new LabelledCounter(
      at,
      'events_set_aside_total',
      'Events that could not be processed and were skipped, by follower.',
      'follower',
    );
    this.queueJobs = new LabelledGauge(at, 'queue_jobs', 'Jobs by status, from the roll-ups.', 'status');
    this.oldestSeconds = new LabelledGauge(at, 'queue_oldest_seconds', 'Age of the oldest claimable job.');
    gauge(at, 'build_info', 'Always 1; the version is the label.', ['version']).set({ version: options.version }, 1);
    this.#addPools(at, options.pools);
    this.loopDelay = new LoopDelay(this.registry);
  }

  /** Adds the process metrics; all others work before. */
  async start(): Promise<void> {
    if (this.#defaults) return;
    this.#defaults = true;
    collectDefaultMetrics({ register: this.registry, eventLoopMonitoringPrecision: monitorPrecisionMs });
    this.loopDelay.replaceDefaults(this.registry);
  }

  async stop(): Promise<void> {}

  #addPools(at: MetricOptions, pools: MetricsOptions['pools']): void {
    if (pools === undefined) return;
    new Gauge({
      name: 'leasehold_database_connections',
      help: 'Database connections by pool and state; waiting counts callers that wait for one.',
      labelNames: ['pool', 'state'],
      registers: [at.registry],
      collect() {
        for (const [pool, use] of Object.entries(pools())) {
          this.set({ pool, state: 'total' }, use.totalCount);
          this.set({ pool, state: 'idle' }, use.idleCount);
          this.set({ pool, state: 'waiting' }, use.waitingCount);
        }
      },
    });
  }
}

// prom-client always starts Node's event-loop monitor. It is not used, so it samples as rarely as possible.
const monitorPrecisionMs = maxTimerMs;
const webhookBuckets = [0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30];

function counter<L extends string = never>(at: MetricOptions, name: string, help: string, labelNames: L[] = []) {
  return new Counter<L>({ name: `leasehold_${name}`, help, labelNames, registers: [at.registry] });
}

function gauge<L extends string = never>(at: MetricOptions, name: string, help: string, labelNames: L[] = []) {
  return new Gauge<L>({ name: `leasehold_${name}`, help, labelNames, registers: [at.registry] });
}

/** Logs and counts the events that a follower set aside. */
export function reportSetAside(metrics: Pick<Metrics, 'setAside'>, logger: Logger): ReportSetAside {
  return (tenant, events = []) => {
    for (const event of events) {
      metrics.setAside.add(tenant.slug, event.follower);
      logger.error({ tenant: tenant.slug, ...event }, 'an event could not be processed and was set aside');
    }
  };
}

// Delay of the event loop since the last scrape, under our name and under the names of prom-client's default metrics.
// Node's own monitor is not used: its timer would keep waking an idle process.

const help = 'Delay of the event loop since the last scrape, sampled while the daemon is busy.';
// Not a label `quantile`, which Prometheus reserves for summaries.
const statistics = { p50: 50, p99: 99, max: 100 };

class LoopDelay {
  // In nanoseconds; the smallest value is 1.
  #histogram = createHistogram();

  constructor(registry: Registry) {
    const read = () => this.#histogram;
    new Gauge({
      name: 'leasehold_event_loop_delay_seconds',
      help,
      labelNames: ['statistic'],
      registers: [registry],
      collect() {
        const delay = read();
        for (const [statistic, percentile] of Object.entries(statistics)) {
          this.set({ statistic }, delay.count === 0 ? 0 : delay.percentile(percentile) / 1e9);
        }
      },
    });
  }

  add(ms: number): void {
    this.#histogram.record(Math.max(1, Math.round(ms * 1e6)));
  }

  /** Replaces prom-client's metrics, which read Node's monitor. The last of them resets the histogram. */
  replaceDefaults(registry: Registry): void {
    const histogram = this.#histogram;
    const values = {
      min: () => histogram.min,
      max: () => histogram.max,
      mean: () => histogram.mean,
      stddev: () => histogram.stddev,
      p50: () => histogram.percentile(50),
      p90: () => histogram.percentile(90),
      p99: () => histogram.percentile(99),
    };
    for (const [key, value] of Object.entries(values)) {
      const name = `nodejs_eventloop_lag_${key}_seconds`;
      registry.removeSingleMetric(name);
      new Gauge({
        name,
        help,
        registers: [registry],
        collect() {
          this.set(histogram.count === 0 ? 0 : value() / 1e9);
          if (key === 'p99') histogram.reset();
        },
      });
    }
  }
}
