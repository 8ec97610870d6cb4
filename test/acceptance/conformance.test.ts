// The conformance kit certifies the reference workers and finds the fault of every mutant.
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import pLimit from 'p-limit';
import { describe, expect, test } from 'vitest';
import { certify } from '../../scripts/conformance/certify.ts';
import { useCompiled } from '../support/daemon/compiled.ts';
import { useScheduler } from '../support/http/scheduler.ts';
import { useTenant } from '../support/postgres/database.ts';

const api = useScheduler(useTenant());
const pathTo = (file: string) => fileURLToPath(new URL(`../../${file}`, import.meta.url));
const compiled = useCompiled([
  'scripts/clients/example-worker.ts',
  'scripts/conformance/main.ts',
  'test/support/daemon/run-mutant-worker.ts',
]);
const typescript = (file: string, ...args: string[]) => [process.execPath, compiled.pathTo(file), ...args];
const hasPython = spawnSync('python3', ['--version']).status === 0;
// Most of a run is waiting: two at a time keep two cores busy, more would make workers late.
const limit = pLimit(2);
const timeout = 300_000;

// Every check for every mutant takes most of a minute: `npm run test:faults` does so, `npm test` plays the one that finds it.
const isLong = Number(process.env.LEASEHOLD_TEST_MINUTES ?? 0) > 0;

async function failedChecks(command: string[], only?: string): Promise<Record<string, string>> {
  const checks = only === undefined ? {} : { only: [only] };
  const verdicts = await limit(() => certify({ url: api.app.url, key: api.key, command, parallel: true, ...checks }));
  if (verdicts.length !== (only === undefined ? 5 : 1)) throw new Error('some checks were not played');
  return Object.fromEntries(verdicts.filter((v) => !v.passed).map((v) => [v.name, v.detail ?? '']));
}

describe.concurrent('conformance', () => {
  test('the TypeScript worker passes', { timeout }, async ({ expect }) => {
    expect(await failedChecks(typescript('scripts/clients/example-worker.ts'))).toEqual({});
  });

  // Skipped where there is no python3: the name of the test says so in the report.
  test.skipIf(!hasPython)('the Python worker passes (needs python3)', { timeout }, async ({ expect }) => {
    expect(await failedChecks(['python3', pathTo('scripts/clients/python/leasehold/worker.py')])).toEqual({});
  });

  test.each([
    ['ignores cancel', 'cancel', /not released within/],
    ['ignores loss', 'lease', /went on after a heartbeat was answered with 409/],
    ['ignores drain', 'drain', /claimed after SIGTERM/],
    ['ignores denial', 'capacity', /without a granted lease/],
    ['dies without a server', 'restart', /exited with 1/],
  ])('a worker that %s fails the check %s and no other', { timeout }, async (fault, check, detail) => {
    const failed = await failedChecks(
      typescript('test/support/daemon/run-mutant-worker.ts', fault),
      isLong ? undefined : check,
    );
    expect(failed).toEqual({ [check]: expect.stringMatching(detail) });
  });

  test('the command names the failed checks, and its exit code reports a failure', { timeout }, async ({ expect }) => {
    const good = await runCommand(typescript('scripts/clients/example-worker.ts'));
    expect(good.output).toMatch(/^ok {3}drain: .*\n1 of 1 checks passed\n$/s);
    expect(good.code).toBe(0);
    const bad = await runCommand(typescript('test/support/daemon/run-mutant-worker.ts', 'ignores drain'));
    expect(bad.output).toMatch(/^FAIL drain: .*claimed after SIGTERM.*0 of 1 checks passed\n$/s);
    expect(bad.code).toBe(1);
  });
});

async function runCommand(worker: string[]): Promise<{ output: string; code: number }> {
  return limit(async () => {
    const [program = '', ...args] = typescript('scripts/conformance/main.ts');
    const options = ['--url', api.app.url, '--key', api.key, '--only', 'drain', '--', ...worker];
    const kit = spawn(program, [...args, ...options], { stdio: ['ignore', 'pipe', 'inherit'] });
    let output = '';
    kit.stdout.on('data', (chunk: Buffer) => {
      output += chunk.toString();
    });
    const [code] = await once(kit, 'close');
    return { output, code: code as number };
  });
}
