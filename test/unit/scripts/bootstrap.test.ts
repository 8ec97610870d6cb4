import { execFile } from 'node:child_process';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { packageRoot } from '../../../server/kernel/environment.ts';

test('an old Node is told in plain words which one is needed', async () => {
  const old = 'Object.defineProperty(process, "versions", { value: { ...process.versions, node: "18.20.4" } })';
  const { code, output } = await bootstrap(['--import', `data:text/javascript,${encodeURIComponent(old)}`], ['start']);
  expect(code).toBe(1);
  expect(output).toContain('Leasehold needs Node 20.19 or newer. This is Node 18.20.4.');
});

test('a command it does not know is refused with those it knows', async () => {
  const { code, output } = await bootstrap([], ['strat']);
  expect(code).toBe(1);
  expect(output).toContain('bootstrap does not know "strat"; it knows start, test');
});

test('tests on another Postgres need its URL', async () => {
  const { code, output } = await bootstrap([], ['test-on', 'localhost']);
  expect(code).toBe(1);
  expect(output).toContain('npm run test:postgres -- postgres://');
});

function bootstrap(nodeArgs: string[], args: string[]): Promise<{ code: number; output: string }> {
  const script = join(packageRoot(), 'scripts', 'bootstrap.mjs');
  return new Promise((resolve) => {
    execFile(process.execPath, [...nodeArgs, script, ...args], (error, stdout, stderr) => {
      resolve({ code: error ? Number(error.code) : 0, output: stdout + stderr });
    });
  });
}
