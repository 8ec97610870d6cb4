// Numbers and names in the documents are those of the code.

import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { jobErrors } from '../../../server/jobs/model/job-errors.ts';
import { backoffMs } from '../../../server/kernel/backoff.ts';
import { describeSettings, loadConfig } from '../../../server/kernel/config.ts';
import { packageRoot } from '../../../server/kernel/environment.ts';
import { deliveryBackoff } from '../../../server/webhooks/delivery-attempt.ts';

const root = packageRoot();
const read = (path: string) => readFileSync(join(root, path), 'utf8');
const pages = ['README.md', ...readdirSync(join(root, 'docs')).map((name) => join('docs', name))].filter((name) =>
  name.endsWith('.md'),
);

test('a number in parentheses behind a setting is its default', () => {
  const defaults = new Map<string, string>(describeSettings().map((setting) => [setting.name, setting.default]));
  let found = 0;
  for (const page of pages) {
    for (const [, name = '', value] of read(page).matchAll(/`([A-Z][A-Z0-9_]+)` \(([\d.]+)\)/g)) {
      found += 1;
      expect([page, name, value]).toEqual([page, name, defaults.get(name)]);
    }
  }
  expect(found).toBeGreaterThan(3);
});

test('webhooks are tried for as long as the documents say, and at least for a day', () => {
  const { webhookMaxAttempts } = loadConfig({});
  const hours = (random: number) => {
    let ms = 0;
    // After the last try nothing is waited for.
    for (let attempt = 1; attempt < webhookMaxAttempts; attempt++) ms += backoffMs(deliveryBackoff, attempt, random);
    return Math.floor(ms / 3_600_000);
  };
  const shortest = hours(1);
  expect(shortest).toBeGreaterThanOrEqual(24);
  for (const page of ['docs/webhooks.md', 'docs/operations.md']) {
    expect(read(page)).toContain(`${shortest} to ${hours(0)} hours`);
  }
  const first = [1, 2].map((attempt) => `${backoffMs(deliveryBackoff, attempt, 0) / 1000} s`).join(', ');
  expect(read('docs/webhooks.md')).toContain(
    `after ${first}, 1 min … at most ${deliveryBackoff.maxDelaySeconds / 3600} h`,
  );
});

test('the grace of a pod in the documents covers the drain of a daemon', () => {
  const { shutdownGracePeriodSeconds, cancelGraceSeconds } = loadConfig({});
  const [, shown] =
    /terminationGracePeriodSeconds: (\d+)/.exec(read('docs/deployment/kubernetes/leasehold.yaml')) ?? [];
  expect(Number(shown)).toBeGreaterThan(shutdownGracePeriodSeconds + cancelGraceSeconds + 5);
  expect(read('docs/deployment.md')).toContain(`${shown} = ${shutdownGracePeriodSeconds} + ${cancelGraceSeconds} + 5`);
});

test('every code that the engine gives to an error of a job is documented', () => {
  const page = read('docs/handlers.md');
  const codes = new Set<string>(Object.keys(jobErrors));
  for (const folder of ['jobs', 'worker', 'scheduler', 'maintenance']) {
    for (const name of readdirSync(join(root, 'server', folder), { recursive: true, encoding: 'utf8' })) {
      // Reasons why a job does not run are no errors.
      if (!name.endsWith('.ts') || /(^|\/)why/.test(name)) continue;
      for (const [, code = ''] of read(join('server', folder, name)).matchAll(/\bcode: '([A-Z][A-Z0-9_]+)'/g)) {
        codes.add(code);
      }
    }
  }
  expect(codes.size).toBeGreaterThan(10);
  expect([...codes].filter((code) => !page.includes(`\`${code}\``))).toEqual([]);
});

test('every relative link leads to a file', () => {
  for (const page of pages) {
    for (const [, target = ''] of read(page).matchAll(/\]\((?!https?:)([^)#\s]+)(?:#[^)]*)?\)/g)) {
      const path = join(page, '..', target);
      expect(() => readdirOrFile(path), `${page}: ${target}`).not.toThrow();
    }
  }
});

function readdirOrFile(path: string): void {
  if (path.endsWith('/')) readdirSync(join(root, path));
  else read(path);
}

test('the figures of the comparison are those of docs/performance.md', () => {
  const [, measured = ''] = read('docs/comparison.md').split('## Measured');
  const rows = measured.split('\n').filter((line) => /^\| [a-z0-9]/.test(line));
  const figures = rows.flatMap((row) =>
    [
      ...row
        .split('|')
        .slice(2)
        .join('|')
        .matchAll(/[\d.,]*\d/g),
    ].map(([one]) => one),
  );
  expect(figures).toHaveLength(21);
  const performance = read('docs/performance.md');
  expect(figures.filter((figure) => !performance.includes(`| ${figure} |`))).toEqual([]);
});
