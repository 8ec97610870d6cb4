// Delay of the event loop since the last scrape, under our name and under the names of prom-client's default metrics.
// Node's own monitor is not used: its timer would keep waking an idle process.
import { createHistogram } from 'node:perf_hooks';
import { Gauge, type Registry } from 'prom-client';

const help = 'Delay of the event loop since the last scrape, sampled while the daemon is busy.';
// Not a label `quantile`, which Prometheus reserves for summaries.
const statistics = { p50: 50, p99: 99, max: 100 };

export class LoopDelay {
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
