// `npm run test:guards [-- --guard NAME] [-- --part 1/4]`: takes each guard of test/guards out, in a copy of
// the project, runs the tests that must fail then, and prints what caught it.
import { spawn } from 'node:child_process';
import { cp, mkdir, mkdtemp, readFile, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { parseArgs } from 'node:util';
import { packageRoot } from '../../server/kernel/environment.ts';
import { type Guard, withoutGuard } from '../../test/guards/guard.ts';
import { guards } from '../../test/guards/guards.ts';

const { values } = parseArgs({
  options: { guard: { type: 'string' }, part: { type: 'string', default: '1/1' }, scenarios: { type: 'boolean' } },
});
const root = packageRoot();
const copied = ['server', 'test', 'scripts', 'migrations', 'docs', 'package.json', 'tsconfig.json', 'vitest.config.ts'];

const wanted =
  values.guard === undefined ? part(guards, values.part) : guards.filter(({ name }) => name === values.guard);
if (wanted.length === 0) throw new Error(`there is no guard "${values.guard}"`);
const copy = await copyProject();
let missed = 0;
try {
  console.log('| guard | prevents | caught by |\n|---|---|---|');
  for (const guard of wanted) {
    const caught = await catchers(guard);
    if (caught.length === 0) missed += 1;
    console.log(`| ${guard.name} | ${guard.prevents} | ${caught.join(', ') || 'not caught'} |`);
  }
} finally {
  await rm(copy, { recursive: true, force: true });
}
process.exitCode = missed === 0 ? 0 : 1;

/** `2/4`: the second quarter. */
function part<T>(all: readonly T[], text: string): T[] {
  const [number = 1, of = 1] = text.split('/').map(Number);
  const size = Math.ceil(all.length / of);
  return all.slice((number - 1) * size, number * size);
}

async function copyProject(): Promise<string> {
  const directory = await mkdtemp(join(tmpdir(), 'leasehold-guards-'));
  for (const name of copied) {
    await mkdir(dirname(join(directory, name)), { recursive: true });
    await cp(join(root, name), join(directory, name), { recursive: true });
  }
  await symlink(join(root, 'node_modules'), join(directory, 'node_modules'));
  return directory;
}

/** The tests, and the scenario, that fail without the guard. */
async function catchers(guard: Guard): Promise<string[]> {
  const path = join(copy, guard.file);
  const source = await readFile(path, 'utf8');
  await writeFile(path, withoutGuard(guard, source));
  try {
    const caught: string[] = [];
    if (values.scenarios !== true) {
      for (const tests of byFile(guard.tests)) if (await fails(tests)) caught.push(`\`${tests[0]}\``);
    }
    if (guard.scenario !== undefined && (await fails(scenarioTests(guard.scenario), guard.scenario))) {
      caught.push(`scenario ${guard.scenario}`);
    }
    return caught;
  } finally {
    await writeFile(path, source);
  }
}

function byFile(tests: readonly string[]): string[][] {
  const at = tests.indexOf('-t');
  const options = at < 0 ? [] : tests.slice(at);
  return (at < 0 ? tests : tests.slice(0, at)).map((file) => [file, ...options]);
}

function scenarioTests(scenario: string): string[] {
  return ['test/faults/scenarios.test.ts', '-t', `^${scenario}:`];
}

/** True if a test failed. A run that could not be started is an error, not a catch. */
async function fails(tests: readonly string[], scenario?: string): Promise<boolean> {
  const report = join(copy, 'report.json');
  await rm(report, { force: true });
  const args = ['run', ...tests, '--bail=1', '--reporter=json', `--outputFile=${report}`];
  const env = { ...process.env, ...(scenario !== undefined && { LEASEHOLD_TEST_SCENARIO: scenario }) };
  const child = spawn(process.execPath, [join(root, 'node_modules/vitest/vitest.mjs'), ...args], {
    cwd: copy,
    env,
    stdio: 'ignore',
  });
  await new Promise((resolve) => child.once('close', resolve));
  const { numFailedTests, numPassedTests } = JSON.parse(await readFile(report, 'utf8')) as Record<string, number>;
  if (numFailedTests === 0 && numPassedTests === 0) throw new Error(`no test ran: ${tests.join(' ')}`);
  return (numFailedTests ?? 0) > 0;
}
