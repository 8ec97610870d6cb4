// What the code can report is documented: metrics, problem codes, violations.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { packageRoot } from '../../../server/kernel/environment.ts';
import { Metrics } from '../../../server/stats/metrics.ts';

const read = (path: string) => readFileSync(join(packageRoot(), path), 'utf8');

test('every metric is in docs/operations.md', () => {
  const page = read('docs/operations.md');
  const names = new Metrics({ perTenant: false, version: 'test' }).registry.getMetricsAsArray().map(({ name }) => name);
  const own = names.filter((name) => name.startsWith('leasehold_'));
  expect(own.length).toBeGreaterThan(15);
  expect(own.filter((name) => !new RegExp(`\`${name}[\`{]`).test(page))).toEqual([]);
});

test('every problem code is in docs/http-api.md', () => {
  const codes = [...read('server/kernel/errors.ts').matchAll(/^ {2}([A-Z_]+): \{ status: \d+/gm)].map(
    ([, code]) => code,
  );
  expect(codes.length).toBeGreaterThan(15);
  const page = read('docs/http-api.md');
  expect(codes.filter((code) => !page.includes(`\`${code}\``))).toEqual([]);
});

test('every violation that verify reports is in docs/events.md', () => {
  const kinds = [...read('server/verify/violation.ts').matchAll(/^ {4}\| '([a-z_]+)'/gm)].map(([, kind]) => kind);
  expect(kinds.length).toBeGreaterThan(10);
  const page = read('docs/events.md');
  expect(kinds.filter((kind) => !page.includes(`\`${kind}\``))).toEqual([]);
});
