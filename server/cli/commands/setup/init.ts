// `leasehold init`: creates a first job, its test, and the files of a project. Existing files are not changed, except
// package.json, which gets missing entries.
import { existsSync } from 'node:fs';
import { mkdir, readFile, writeFile } from 'node:fs/promises';
import { basename, dirname, resolve } from 'node:path';
import type { Command } from 'commander';
import { packageRoot, packageVersion } from '../../../kernel/environment.ts';
import { problem } from '../../../kernel/errors.ts';
import type { Session } from '../../session.ts';

const job = `import { defineJob, z } from 'leasehold';

export default defineJob({
  type: 'hello',
  payload: z.object({ name: z.string().min(1).default('world') }),
  retry: { attempts: 3 },
  async run({ payload, progress, sleep, log }) {
    for (let step = 1; step <= 10; step++) {
      await sleep(200); // rejects when the job is paused or canceled
      progress(step * 10, \`step \${step} of 10\`);
    }
    log('greeted', { name: payload.name });
    return { greeting: \`Hello, \${payload.name}!\` };
  },
});
`;

const jobTest = `import assert from 'node:assert/strict';
import test from 'node:test';
import { runHandler } from 'leasehold/testing';
import hello from './hello.ts';

test('hello greets', async () => {
  const run = await runHandler(hello, { payload: { name: 'Ann' } });
  assert.equal(run.status, 'completed');
  assert.equal(run.result?.greeting, 'Hello, Ann!');
  assert.equal(run.progress.at(-1)?.percent, 100);
});
`;

const typescript = {
  compilerOptions: {
    target: 'ES2023',
    module: 'NodeNext',
    strict: true,
    noEmit: true,
    allowImportingTsExtensions: true,
    types: ['node'],
  },
  include: ['jobs'],
};

interface Manifest {
  name?: string;
  private?: boolean;
  type?: string;
  scripts?: Record<string, string>;
  dependencies?: Record<string, string>;
  devDependencies?: Record<string, string>;
}

export function addInitCommand(program: Command, session: Session): void {
  program
    .command('init')
    .description('write a first job, a test and a package.json; nothing is overwritten')
    .argument('[directory]', 'where', '.')
    .action(async (directory: string) => {
      const home = resolve(directory);
      await mkdir(home, { recursive: true });
      const written = [
        await writeManifest(home),
        await write(home, 'jobs/hello.ts', job),
        await write(home, 'jobs/hello.test.ts', jobTest),
        await write(home, 'tsconfig.json', `${JSON.stringify(typescript, null, 2)}\n`),
        await write(home, '.gitignore', 'node_modules/\n.leasehold/\n.env\n'),
      ];
      const lines = written.map(({ file, change }) => `${change.padEnd(8)}  ${file}`);
      const enter = home === process.cwd() ? [] : [`cd ${directory}`];
      const next = [...enter, 'npm install', 'npm test', 'npm run dev'].map((line) => `  ${line}`);
      session.print({ directory: home, files: written }, [...lines, '', 'Next:', ...next].join('\n'));
    });
}

interface Written {
  file: string;
  change: 'written' | 'extended' | 'kept';
}

async function write(home: string, file: string, text: string): Promise<Written> {
  const path = resolve(home, file);
  if (existsSync(path)) return { file, change: 'kept' };
  await mkdir(dirname(path), { recursive: true });
  await writeFile(path, text, { flag: 'wx' });
  return { file, change: 'written' };
}

async function writeManifest(home: string): Promise<Written> {
  const path = resolve(home, 'package.json');
  const before = existsSync(path) ? await readFile(path, 'utf8') : undefined;
  const after = `${JSON.stringify(await completed(home, before), null, 2)}\n`;
  if (after === before) return { file: 'package.json', change: 'kept' };
  await writeFile(path, after);
  return { file: 'package.json', change: before === undefined ? 'written' : 'extended' };
}

async function completed(home: string, before: string | undefined): Promise<Manifest> {
  const given: Manifest = before === undefined ? { name: nameOf(home), private: true } : parse(before);
  const ours = JSON.parse(await readFile(resolve(packageRoot(), 'package.json'), 'utf8')) as Required<Manifest>;
  return {
    type: 'module',
    ...given,
    scripts: {
      dev: 'leasehold dev',
      start: 'HANDLERS=./jobs leaseholdd',
      test: 'node --import tsx --test jobs/*.test.ts',
      ...withoutPlaceholder(given.scripts),
    },
    dependencies: { leasehold: `^${packageVersion()}`, ...given.dependencies },
    devDependencies: { '@types/node': '>=20', tsx: ours.dependencies.tsx ?? '*', ...given.devDependencies },
  };
}

function parse(text: string): Manifest {
  try {
    return JSON.parse(text) as Manifest;
  } catch (error) {
    throw problem('CONFLICT', `package.json is not valid JSON: ${(error as Error).message}`);
  }
}

/** The test script that `npm init` writes only fails. */
function withoutPlaceholder(scripts: Record<string, string> = {}): Record<string, string> {
  const { test, ...others } = scripts;
  return test === undefined || test.includes('no test specified') ? others : scripts;
}

/** A name that npm accepts. */
function nameOf(home: string): string {
  return (
    basename(home)
      .toLowerCase()
      .replace(/[^a-z0-9-]+/g, '-')
      .replace(/^-+|-+$/g, '') || 'my-jobs'
  );
}
