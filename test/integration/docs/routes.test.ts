// Routes that the documents name are served, and those of a job are there under its target too.
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { packageRoot } from '../../../server/kernel/environment.ts';
import { startDaemon } from '../../support/daemon/daemon.ts';
import { useDatabase } from '../../support/postgres/database.ts';

const context = useDatabase();
const root = packageRoot();

/** `GET /api/jobs/{}` of every route that a daemon serves. */
async function servedRoutes(): Promise<Set<string>> {
  const daemon = await startDaemon(context);
  const { paths } = (await (await fetch(`${daemon.url}/openapi.json`)).json()) as { paths: Record<string, object> };
  const routes = Object.entries(paths).flatMap(([path, methods]) =>
    Object.keys(methods).map((method) => `${method.toUpperCase()} ${plain(path)}`),
  );
  return new Set(routes);
}

/** Without the names of parameters, a query or a slash at the end. */
function plain(path: string): string {
  return path
    .replace(/[?#].*$/, '')
    .replaceAll(/\{[^}]*\}/g, '{}')
    .replace(/\/$/, '');
}

test('every documented route is served', async () => {
  const served = await servedRoutes();
  const pages = ['README.md', ...readdirSync(join(root, 'docs')).map((name) => join('docs', name))];
  const missing: string[] = [];
  let found = 0;
  for (const page of pages.filter((name) => name.endsWith('.md'))) {
    const text = readFileSync(join(root, page), 'utf8');
    for (const [, method, path = ''] of text.matchAll(/`(GET|POST|PUT|PATCH|DELETE) (\/[^\s`…]*)/g)) {
      found += 1;
      const route = `${method} ${plain(path)}`;
      // The page of remote workers leaves common beginnings out.
      const candidates = ['', '/api/scheduler', '/api/scheduler/lease/{}'].map((start) =>
        route.replace(' ', ` ${start}`),
      );
      if (!candidates.some((candidate) => served.has(candidate))) missing.push(`${page}: ${route}`);
    }
  }
  expect(found).toBeGreaterThan(50);
  expect(missing).toEqual([]);
});

test('every route of a job exists under its target', async () => {
  const served = await servedRoutes();
  const ofJobs = [...served].filter((route) => /^[A-Z]+ \/api\/jobs\/\{\}/.test(route));
  expect(ofJobs.length).toBeGreaterThan(8);
  expect(ofJobs.filter((route) => !served.has(route.replace('/api/jobs', '/api/targets/{}/jobs')))).toEqual([]);
});
