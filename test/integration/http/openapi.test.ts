// The public API as one document: a change of a route, a field or an error code shows up as a diff of openapi.json.
// After an intended change: `npx vitest run test/integration/http/openapi.test.ts -u`, with the path before the flag.
import { createConfig, lintFromString } from '@redocly/openapi-core';
import { expect, test } from 'vitest';
import { startDaemon } from '../../support/daemon/daemon.ts';
import { useDatabase } from '../../support/postgres/database.ts';

const database = useDatabase();

test('GET /openapi.json is the document kept in test/snapshots/openapi.json', async () => {
  const daemon = await startDaemon(database);
  const response = await fetch(`${daemon.url}/openapi.json`);
  expect(response.status).toBe(200);
  const document = sorted(await response.json());
  await expect(`${JSON.stringify(document, null, 1)}\n`).toMatchFileSnapshot('../../snapshots/openapi.json');
});

test('the document passes the recommended rules of redocly, warnings included', async () => {
  const daemon = await startDaemon(database);
  const source = await (await fetch(`${daemon.url}/openapi.json`)).text();
  const config = await createConfig({ extends: ['recommended'] });
  const problems = await lintFromString({ source, config });
  expect(problems.map((each) => `${each.ruleId}: ${each.message} ${each.location[0]?.pointer}`)).toEqual([]);
});

test('every operation has a tag that the explorer shows', async () => {
  const daemon = await startDaemon(database);
  const document = (await (await fetch(`${daemon.url}/openapi.json`)).json()) as {
    tags: { name: string }[];
    paths: Record<string, Record<string, { tags: string[] }>>;
  };
  const shown = document.tags.map((tag) => tag.name);
  const used = Object.values(document.paths).flatMap((path) => Object.values(path).flatMap(({ tags }) => tags));
  expect([...new Set(used)].sort()).toEqual([...shown].sort());
});

/** Paths, components and their fields by name: the order in which routes are registered is not part of the API. */
function sorted(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(sorted);
  if (typeof value !== 'object' || value === null) return value;
  return Object.fromEntries(
    Object.entries(value)
      .sort(([a], [b]) => (a < b ? -1 : 1))
      .map(([key, inner]) => [key, sorted(inner)]),
  );
}
