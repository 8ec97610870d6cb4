// prom-client's counters, gauges and histograms with an optional tenant label. Labelled children are cached: finding
// one by its labels costs more than counting.
import { Counter, Gauge, Histogram, type Registry } from 'prom-client';

export interface MetricOptions {
  registry: Registry;
  perTenant: boolean;
}

/** The values of the metric's own label; `never` if it has none. */
type Labels<V extends string> = [V] extends [never] ? [] : [label: V];

class Children<C> {
  #byKey = new Map<string, C>();
  #perTenant: boolean;
  #own: string | undefined;
  #make: (labels: Record<string, string>) => C;

  constructor(perTenant: boolean, own: string | undefined, make: (labels: Record<string, string>) => C) {
    this.#perTenant = perTenant;
    this.#own = own;
    this.#make = make;
  }

  of(tenant: string, label: string | undefined): C {
    const key = this.#perTenant ? `${tenant}\n${label ?? ''}` : (label ?? '');
    let child = this.#byKey.get(key);
    if (child === undefined) {
      const labels: Record<string, string> = {};
      if (this.#perTenant) labels.tenant = tenant;
      if (this.#own !== undefined && label !== undefined) labels[this.#own] = label;
      child = this.#make(labels);
      this.#byKey.set(key, child);
    }
    return child;
  }

  clear(): void {
    this.#byKey.clear();
  }
}

export class LabelledCounter<V extends string> {
  #children: Children<Counter.Internal>;

  constructor(options: MetricOptions, name: string, help: string, label?: string) {
    const counter = new Counter(metricConfig(options, name, help, label));
    this.#children = new Children(options.perTenant, label, (of) => counter.labels(of));
  }

  /** `add(tenant.slug)`, `add(tenant.slug, 'completed')`, `add(tenant.slug, 'completed', 5)`. */
  add(tenant: string, ...rest: [...Labels<V>, count?: number]): void {
    const last = rest.at(-1);
    const count = typeof last === 'number' ? last : 1;
    const label = typeof rest[0] === 'string' ? rest[0] : undefined;
    this.#children.of(tenant, label).inc(count);
  }
}

export class LabelledGauge<V extends string> {
  #gauge: Gauge;
  #children: Children<Gauge.Internal<string>>;

  constructor(options: MetricOptions, name: string, help: string, label?: string) {
    this.#gauge = new Gauge(metricConfig(options, name, help, label));
    this.#children = new Children(options.perTenant, label, (of) => this.#gauge.labels(of));
  }

  set(tenant: string, ...rest: [...Labels<V>, value: number]): void {
    const label = typeof rest[0] === 'string' ? rest[0] : undefined;
    this.#children.of(tenant, label).set(rest.at(-1) as number);
  }

  add(tenant: string, ...rest: [...Labels<V>, change: number]): void {
    const label = typeof rest[0] === 'string' ? rest[0] : undefined;
    this.#children.of(tenant, label).inc(rest.at(-1) as number);
  }

  /** Removes every series, including those of deleted tenants. */
  reset(): void {
    this.#children.clear();
    this.#gauge.reset();
  }
}

export class LabelledHistogram<V extends string> {
  #children: Children<Histogram.Internal<string>>;

  constructor(options: MetricOptions, name: string, help: string, buckets: number[], label?: string) {
    const histogram = new Histogram({ ...metricConfig(options, name, help, label), buckets });
    this.#children = new Children(options.perTenant, label, (of) => histogram.labels(of));
  }

  /** The labelled child, to observe many values with one lookup. */
  of(tenant: string, ...rest: Labels<V>): Histogram.Internal<string> {
    return this.#children.of(tenant, rest[0]);
  }
}

function metricConfig(options: MetricOptions, name: string, help: string, label: string | undefined) {
  const labelNames = [...(options.perTenant ? ['tenant'] : []), ...(label === undefined ? [] : [label])];
  return { name: `leasehold_${name}`, help, labelNames, registers: [options.registry] };
}
