// Everything that this daemon measures, for Prometheus. One object, made by the composition root;
// the others call its members. Labels are few and bounded: never a job, a target or an address; a
// tenant only if METRICS_PER_TENANT says so.
import { Counter, collectDefaultMetrics, Gauge, Registry } from 'prom-client';
import type { ReportSetAside } from '../events/log/set-aside.ts';
import type { Logger } from '../kernel/logger.ts';
import type { Service } from '../kernel/service.ts';
import { LabelledCounter, LabelledGauge, LabelledHistogram, type MetricOptions } from './labelled.ts';
import { LoopDelay } from './loop-delay.ts';

export type JobOutcome = 'completed' | 'partial' | 'failed' | 'retried' | 'paused' | 'canceled' | 'given_back' | 'lost';
export type ClaimResult = 'some' | 'none' | 'error';
export type RenewalResult = 'renewed' | 'lost' | 'error';
export type SweepKind = 'leases' | 'due' | 'expired' | 'orphans' | 'lanes' | 'targets' | 'retention' | 'schedules';
export type WebhookOutcome = 'delivered' | 'retried' | 'failed' | 'disabled';
export type DrainResult = 'clean' | 'grace_over' | 'forced';

interface PoolUse {
  totalCount: number;
  idleCount: number;
  waitingCount: number;
}

export interface MetricsOptions {
  perTenant: boolean;
  version: string;
  /** By name; read when a scraper asks. */
  pools?: () => Record<string, PoolUse>;
}

// From a wake-up's latency to a job of hours; the same bounds in both, so that they can be compared.
const durationBuckets = [0.005, 0.025, 0.1, 0.25, 1, 2.5, 10, 30, 60, 300, 900, 3600, 14_400];

export class Metrics implements Service {
  readonly name = 'metrics';
  readonly registry = new Registry();
  readonly perTenant: boolean;

  /** Claim statements, by whether they found work. */
  readonly claims: LabelledCounter<ClaimResult>;
  readonly jobsClaimed: LabelledCounter<never>;
  /** From when a job might run to when it ran. */
  readonly waitSeconds: LabelledHistogram<never>;
  readonly runSeconds: LabelledHistogram<JobOutcome>;
  readonly outcomes: LabelledCounter<JobOutcome>;
  /** Jobs that run in this process now. */
  readonly running: LabelledGauge<never>;
  readonly renewals: LabelledCounter<RenewalResult>;
  readonly lostLeases: LabelledCounter<never>;
  /** Passes of the sweeper, and what they moved. */
  readonly sweeps: LabelledCounter<SweepKind>;
  readonly swept: LabelledCounter<SweepKind>;
  /** Jobs whose holder went silent. */
  readonly zombies: LabelledCounter<never>;
  /** Handlers that were told to stop and still ran: fenced off, or released while still running. */
  readonly unresponsiveHandlers: LabelledCounter<'fenced' | 'released'>;
  readonly drains: Counter<'result'>;
  readonly draining: Gauge;
  readonly loopBlocked: Counter;
  readonly loopBlockedSeconds: Counter;
  readonly webhooks: LabelledCounter<WebhookOutcome>;
  readonly webhookSeconds: LabelledHistogram<never>;
  /** Events that a follower could not process and passed by. */
  readonly setAside: LabelledCounter<string>;
  readonly queueJobs: LabelledGauge<string>;
  readonly oldestSeconds: LabelledGauge<never>;

  readonly loopDelay: LoopDelay;
  #defaults = false;

  constructor(options: MetricsOptions) {
    this.perTenant = options.perTenant;
    const at: MetricOptions = { registry: this.registry, perTenant: options.perTenant };
    this.claims = new LabelledCounter(at, 'claims_total', 'Claim statements, by result (some, none, error).', 'result');
    this.jobsClaimed = new LabelledCounter(at, 'jobs_claimed_total', 'Jobs taken by this daemon.');
    this.waitSeconds = new LabelledHistogram(
      at,
      'job_wait_seconds',
      'From when a job might run to when it ran.',
      durationBuckets,
    );
    this.runSeconds = new LabelledHistogram(
      at,
      'job_run_seconds',
      'How long attempts ran.',
      durationBuckets,
      'outcome',
    );
    this.outcomes = new LabelledCounter(at, 'job_attempts_total', 'Attempts that ended here, by outcome.', 'outcome');
    this.running = new LabelledGauge(at, 'jobs_running', 'Jobs that run in this daemon now.');
    this.renewals = new LabelledCounter(
      at,
      'lease_renewals_total',
      'Renewals, by result (renewed, lost, error).',
      'result',
    );
    this.lostLeases = new LabelledCounter(at, 'leases_lost_total', 'Attempts stopped because their lease was gone.');
    this.sweeps = new LabelledCounter(at, 'sweeps_total', 'Passes of periodic tasks, by kind.', 'kind');
    this.swept = new LabelledCounter(at, 'swept_total', 'Jobs or rows moved by periodic tasks, by kind.', 'kind');
    this.zombies = new LabelledCounter(at, 'zombies_total', 'Jobs taken from a holder that went silent.');
    this.unresponsiveHandlers = new LabelledCounter(
      at,
      'unresponsive_handlers_total',
      'Handlers that did not stop when told to, by what was done (fenced, released).',
      'result',
    );
    this.drains = counter(at, 'drains_total', 'Shutdowns, by result (clean, grace_over, forced).', ['result']);
    this.draining = gauge(at, 'draining', '1 while this daemon shuts down.');
    this.loopBlocked = counter(at, 'event_loop_blocked_total', 'Times the event loop was found blocked.');
    this.loopBlockedSeconds = counter(at, 'event_loop_blocked_seconds_total', 'Time the event loop was found blocked.');
    this.webhooks = new LabelledCounter(at, 'webhook_attempts_total', 'Webhooks sent, by outcome.', 'outcome');
    this.webhookSeconds = new LabelledHistogram(at, 'webhook_seconds', 'How long receivers took.', webhookBuckets);
    this.setAside = new LabelledCounter(
      at,
      'events_set_aside_total',
      'Events that could not be processed and were passed by, by follower.',
      'follower',
    );
    this.queueJobs = new LabelledGauge(at, 'queue_jobs', 'Jobs by status, from the rollups.', 'status');
    this.oldestSeconds = new LabelledGauge(at, 'queue_oldest_seconds', 'Age of the oldest job that waits to be taken.');
    gauge(at, 'build_info', 'Always 1; the version is the label.', ['version']).set({ version: options.version }, 1);
    this.#addPools(at, options.pools);
    this.loopDelay = new LoopDelay(this.registry);
  }

  /** Process metrics; the rest works without. */
  async start(): Promise<void> {
    if (this.#defaults) return;
    this.#defaults = true;
    collectDefaultMetrics({ register: this.registry, eventLoopMonitoringPrecision: never });
    this.loopDelay.replaceDefaults(this.registry);
  }

  async stop(): Promise<void> {}

  #addPools(at: MetricOptions, pools: MetricsOptions['pools']): void {
    if (pools === undefined) return;
    new Gauge({
      name: 'leasehold_database_connections',
      help: 'Database connections by pool and state; waiting counts callers without one.',
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

// Milliseconds between two looks of Node's monitor, which cannot be left out and is not used.
const never = 2 ** 31 - 1;
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
