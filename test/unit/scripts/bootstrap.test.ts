import { execFile } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { cp, mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { packageRoot } from '../../../server/kernel/environment.ts';
import { temporaryDirectory } from '../../support/temporary.ts';

test('an old version of Node is refused with the required version', async () => {
  const old = 'Object.defineProperty(process, "versions", { value: { ...process.versions, node: "18.20.4" } })';
  const { code, output } = await bootstrap(['--import', `data:text/javascript,${encodeURIComponent(old)}`], ['start']);
  expect(code).toBe(1);
  expect(output).toContain('Leasehold needs Node 20.19 or newer. This is Node 18.20.4.');
});

test('an unknown command is refused with the known ones', async () => {
  const { code, output } = await bootstrap([], ['strat']);
  expect(code).toBe(1);
  expect(output).toContain('bootstrap does not know "strat"; it knows start, test, test-on');
});

test('tests on another Postgres need its URL', async () => {
  const { code, output } = await bootstrap([], ['test-on', 'localhost']);
  expect(code).toBe(1);
  expect(output).toContain('npm run test:postgres -- postgres://');
});

describe('what is installed', () => {
  test('running needs no packages of developers, tests add them, and neither is installed twice', async () => {
    const clone = await cloneWithFakeNpm();
    expect(await clone.run('build')).toMatchObject({
      code: 0,
      output: expect.stringContaining('Installing 1 package\n'),
    });
    expect(clone.calls()).toEqual(['ci --omit=dev']);
    // npm ci would remove the packages under a daemon that runs.
    await clone.run('install');
    await clone.run('build');
    await clone.run('install');
    expect(clone.calls()).toEqual(['ci --omit=dev', 'install --no-save --include=dev']);
  });

  test('tests in a fresh clone install everything at once', async () => {
    const clone = await cloneWithFakeNpm();
    await clone.run('install');
    await clone.run('build');
    expect(clone.calls()).toEqual(['ci --include=dev']);
  });

  test('a lock that changed installs again', async () => {
    const clone = await cloneWithFakeNpm();
    await clone.run('build');
    await clone.writeLock({ 'node_modules/runs': { version: '2.0.0' } });
    await clone.run('build');
    expect(clone.calls()).toEqual(['ci --omit=dev', 'ci --omit=dev']);
  });

  test('the error of npm is printed when it fails', async () => {
    const clone = await cloneWithFakeNpm();
    await writeFile(clone.npm, `console.error('E404 no such package'); process.exit(1);`);
    const { code, output } = await clone.run('build');
    expect(code).toBe(1);
    expect(output).toContain('E404 no such package\nnpm ci failed; its reason is above');
    expect(output).not.toContain('    at ');
  });
});

/** The bootstrap in a directory of its own, with a lock of two packages, and an npm that only notes its arguments. */
async function cloneWithFakeNpm() {
  const root = await temporaryDirectory('bootstrap');
  const scripts = join(packageRoot(), 'scripts');
  await cp(join(scripts, 'bootstrap'), join(root, 'scripts', 'bootstrap'), { recursive: true });
  await cp(join(scripts, 'bootstrap.mjs'), join(root, 'scripts', 'bootstrap.mjs'));
  await mkdir(join(root, 'scripts', 'build'));
  await writeFile(
    join(root, 'scripts', 'build', 'build.mjs'),
    `import fs from 'node:fs'; fs.mkdirSync(process.argv[3]);`,
  );
  await mkdir(join(root, 'server'));
  const writeLock = (packages: object) => writeFile(join(root, 'package-lock.json'), JSON.stringify({ packages }));
  await writeLock({
    '': {},
    'node_modules/runs': { version: '1.0.0' },
    'node_modules/tests': { version: '1.0.0', dev: true },
  });
  const npm = join(root, 'npm.js');
  const log = join(root, 'calls');
  await writeFile(
    npm,
    `const fs = require('node:fs');
fs.mkdirSync('node_modules', { recursive: true });
fs.writeFileSync('node_modules/.package-lock.json', '{"packages":{}}');
fs.appendFileSync(${JSON.stringify(log)}, process.argv.slice(2, -3).join(' ') + '\\n');`,
  );
  return {
    npm,
    writeLock,
    run: (command: string) => bootstrap([], [command], { root, env: { ...process.env, npm_execpath: npm } }),
    calls: () => readFileSync(log, 'utf8').trim().split('\n'),
  };
}

interface Place {
  root?: string;
  env?: NodeJS.ProcessEnv;
}

function bootstrap(nodeArgs: string[], args: string[], place: Place = {}): Promise<{ code: number; output: string }> {
  const { root = packageRoot(), env = process.env } = place;
  const script = join(root, 'scripts', 'bootstrap.mjs');
  return new Promise((resolve) => {
    execFile(process.execPath, [...nodeArgs, script, ...args], { env }, (error, stdout, stderr) => {
      resolve({ code: error ? Number(error.code) : 0, output: stdout + stderr });
    });
  });
}
