// The checks of durable calls in the conformance kit: the reference workers pass, and the fault of every mutant is found.
import { spawnSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import pLimit from 'p-limit';
import { describe, expect, test } from 'vitest';
import { certify } from '../../scripts/conformance/certify.ts';
import { scopes } from '../../server/tenants/api-keys/key.ts';
import { createApiKey } from '../../server/tenants/api-keys/key-store.ts';
import { useCompiled } from '../support/daemon/compiled.ts';
import { useDaemon } from '../support/daemon/daemon.ts';
import { useTenant } from '../support/postgres/database.ts';

const context = useTenant();
// Sleepers wake and leases expire: that takes a whole daemon.
const running = useDaemon(context);
const pathTo = (file: string) => fileURLToPath(new URL(`../../${file}`, import.meta.url));
const compiled = useCompiled(['scripts/clients/example-worker.ts', 'test/support/daemon/run-mutant-worker.ts']);
const typescript = (file: string, ...args: string[]) => [process.execPath, compiled.pathTo(file), ...args];
const hasPython = spawnSync('python3', ['--version']).status === 0;
const limit = pLimit(2);
const timeout = 300_000;

async function failedChecks(command: string[], only: string[]): Promise<Record<string, string>> {
  const { text: key } = await createApiKey(context.db, {
    tenantId: context.tenant.id,
    name: 'kit',
    scopes: [...scopes],
  });
  const verdicts = await limit(() => certify({ url: running.daemon.url, key, command, only, parallel: true }));
  expect(verdicts).toHaveLength(only.length);
  return Object.fromEntries(verdicts.filter((v) => !v.passed).map((v) => [v.name, v.detail ?? '']));
}

describe.concurrent('conformance of durable calls', () => {
  const all = ['wait', 'crash', 'fence'];

  test('the TypeScript worker passes', { timeout }, async ({ expect }) => {
    expect(await failedChecks(typescript('scripts/clients/example-worker.ts'), all)).toEqual({});
  });

  // Skipped where there is no python3: the name of the test says so in the report.
  test.skipIf(!hasPython)('the Python worker passes (needs python3)', { timeout }, async ({ expect }) => {
    expect(await failedChecks(['python3', pathTo('scripts/clients/python/leasehold/worker.py')], all)).toEqual({});
  });

  test.each([
    ['sleeps under its lease', 'wait', /slept under its lease/],
    ['forgets stored calls', 'crash', /the effect of step-1 was made/],
    ['ignores a refused step', 'fence', /began another step after its lease was lost/],
  ])('a worker that %s fails the check %s', { timeout }, async (fault, check, detail) => {
    const failed = await failedChecks(typescript('test/support/daemon/run-mutant-worker.ts', fault), [check]);
    expect(failed).toEqual({ [check]: expect.stringMatching(detail) });
  });
});
