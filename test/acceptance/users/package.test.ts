// The package from its packed file: what is in it, its types in every way of resolving modules, its entry points.
import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, readFileSync } from 'node:fs';
import { chmod, rm, symlink, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { promisify } from 'node:util';
import ts from 'typescript';
import { describe, expect, onTestFinished, test, vi } from 'vitest';
import { postmasterPid } from '../../../server/embedded-postgres/cluster.ts';
import { packageRoot } from '../../../server/kernel/environment.ts';
import { readSnippets } from '../../support/docs.ts';
import { eventually } from '../../support/eventually.ts';
import { useInstalledPackage } from '../../support/package/installed.ts';
import { temporaryDirectory } from '../../support/temporary.ts';

vi.setConfig({ testTimeout: 240_000 });

const installed = useInstalledPackage();
const manifest = JSON.parse(readFileSync(join(packageRoot(), 'package.json'), 'utf8')) as {
  exports: Record<string, { types: string } | string>;
};
const entryPoints = Object.keys(manifest.exports)
  .filter((name) => !name.endsWith('.json'))
  .map((name) => join('leasehold', name));

test('has what users need and nothing else', () => {
  const folders = new Set(installed.files.map((file) => file.split('/')[0]));
  expect([...folders].sort()).toEqual(['LICENSE', 'README.md', 'dist', 'migrations', 'package.json', 'server']);
  expect(
    installed.files.filter((file) => /test|spec|\.leasehold-source|tsx$|\.css$/.test(file.replace('/testing/', '/'))),
  ).toEqual(installed.files.filter((file) => /^dist\/dashboard\/assets\/.*\.css$|\/test-run\./.test(file)));
  expect(installed.files).toContain('dist/dashboard/index.html');
});

test('users do not install the packages that the dashboard is built from', () => {
  const page = JSON.parse(readFileSync(join(packageRoot(), 'server/dashboard/package.json'), 'utf8'));
  const names = Object.keys(page.dependencies);
  expect(names).toContain('preact');
  const { dependencies } = JSON.parse(
    readFileSync(join(installed.home, 'node_modules', 'leasehold', 'package.json'), 'utf8'),
  );
  for (const name of names) {
    expect(dependencies).not.toHaveProperty(name);
    expect(existsSync(join(installed.home, 'node_modules', name))).toBe(false);
  }
});

test('every source map leads to a file of the package', () => {
  const home = join(installed.home, 'node_modules', 'leasehold');
  const maps = installed.files.filter((file) => file.endsWith('.map'));
  expect(maps.length).toBeGreaterThan(100);
  for (const map of maps) {
    const { sources } = JSON.parse(readFileSync(join(home, map), 'utf8')) as { sources: string[] };
    for (const source of sources) expect(existsSync(join(home, dirname(map), source)), `${map}: ${source}`).toBe(true);
  }
});

test.each(entryPoints)('importing %s opens nothing: the process ends', async (name) => {
  const code = `const entry = await import('${name}');
    console.log(JSON.stringify([Object.keys(entry).length, process.getActiveResourcesInfo().filter((r) => /Timeout|TCP|TLS|Worker|Port|Process|Signal|Immediate/.test(r))]));`;
  const { stdout } = await promisify(execFile)(process.execPath, ['--input-type=module', '-e', code], {
    cwd: installed.home,
    env: { PATH: process.env.PATH },
    timeout: 180_000,
  });
  const [exported, resources] = JSON.parse(stdout);
  expect(exported).toBeGreaterThan(0);
  expect(resources).toEqual([]);
});

const ways = [
  ['node16', { module: ts.ModuleKind.Node16, moduleResolution: ts.ModuleResolutionKind.Node16 }],
  ['nodenext', { module: ts.ModuleKind.NodeNext, moduleResolution: ts.ModuleResolutionKind.NodeNext }],
  ['bundler', { module: ts.ModuleKind.ESNext, moduleResolution: ts.ModuleResolutionKind.Bundler }],
] as const;
/** For code of users: the declarations themselves are checked by the tests of the ways. */
const nodeTypes = {
  types: ['node'],
  typeRoots: [join(packageRoot(), 'node_modules', '@types')],
  skipLibCheck: true,
};
const longTimeouts = { timeoutMs: 120_000 };

const pagesWithCode = [
  'docs/tutorial.md',
  'docs/recipes.md',
  ...['bullmq', 'graphile-worker', 'river'].map((name) => `docs/coming-from/${name}.md`),
];

/** A definition, and programs that know its types without loading its code. */
const travel = {
  'send-invoice.ts': `import { defineJob, z } from 'leasehold';
export const sendInvoice = defineJob({
  type: 'invoice.send',
  payload: z.object({ invoiceId: z.string(), copies: z.number().default(1) }),
  async run({ payload }) {
    return { pages: payload.copies * 2 };
  },
});
`,
  'app.ts': `import { LeaseholdClient } from 'leasehold/client';
import { createLeasehold } from 'leasehold/server';
import type { sendInvoice } from './send-invoice.ts';
const client = new LeaseholdClient({ url: 'http://127.0.0.1:8080', apiKey: 'lh_' });
const handle = await client.enqueue<typeof sendInvoice>('invoice.send', { invoiceId: '7' }, { targetId: 'acme' });
export const pages: number = (await client.jobs.wait(handle)).result.pages;
// @ts-expect-error the payload lacks its field
await client.enqueue<typeof sendInvoice>('invoice.send', { copies: 2 });
// @ts-expect-error a result of another type
export const wrong: string = (await client.jobs.wait(handle)).result.pages;
const leasehold = await createLeasehold({ databaseUrl: 'postgres://localhost/app', settings: { leaseSeconds: 30 } });
declare const job: typeof sendInvoice;
await leasehold.enqueue('acme', job, { invoiceId: '7' });
// @ts-expect-error the payload has a field of another type
await leasehold.enqueue('acme', job, { invoiceId: 7 });
// @ts-expect-error no such setting
await createLeasehold({ databaseUrl: '', settings: { leaseMinutes: 1 } });
`,
};

describe('types', () => {
  // Those of other packages in one way only: most of the time goes into them.
  test.each(ways)('resolve in strict mode with %s, the declarations checked too', async (name, way) => {
    const imports = entryPoints.map((name, n) => `import * as entry${n} from '${name}';\nvoid entry${n};\n`);
    const checked = name === 'nodenext' ? 'all' : 'ours';
    expect(compile({ 'entries.ts': imports.join(''), ...travel }, way, checked)).toBe('');
  });

  // In one program: most of its time is the check of the declarations of packages.
  test('the code of the documentation compiles in strict mode', async () => {
    const files: Record<string, string> = {};
    for (const page of pagesWithCode) {
      const snippets = (await readSnippets(page)).filter(({ language, info }) => language === 'ts' && info);
      expect(snippets.length, page).toBeGreaterThan(0);
      for (const { info, text } of snippets) files[join(page, info)] = text;
    }
    const options = { ...ways[1][1], ...nodeTypes, noPropertyAccessFromIndexSignature: false };
    expect(compile(files, options)).toBe('');
  });
});

describe('a first project', () => {
  test('init writes a job and a test that pass unchanged, and overwrites nothing', async () => {
    const home = await project();
    const { stdout } = await leasehold(home, 'init');
    expect(stdout).toContain('npm run dev');
    const manifest = JSON.parse(readFileSync(join(home, 'package.json'), 'utf8'));
    expect(manifest).toMatchObject({ type: 'module', dependencies: { leasehold: expect.any(String) } });
    // The shell replaces the pattern, as npm's does.
    const { stdout: tested } = await promisify(execFile)('sh', ['-c', manifest.scripts.test], { cwd: home });
    expect(tested).toMatch(/# pass 1/);
    const files = ['jobs/hello.ts', 'jobs/hello.test.ts'].map((name) => [name, readFileSync(join(home, name), 'utf8')]);
    expect(compile(Object.fromEntries(files), { ...ways[1][1], ...nodeTypes })).toBe('');
    await writeFile(join(home, 'jobs', 'hello.ts'), '// mine');
    const { stdout: again } = await leasehold(home, 'init', '--json');
    expect(JSON.parse(again).files.map(({ change }: { change: string }) => change)).toEqual(Array(5).fill('kept'));
    expect(readFileSync(join(home, 'jobs', 'hello.ts'), 'utf8')).toBe('// mine');
  });

  test('dev runs in an empty directory, follows changes of the jobs, and leaves nothing behind', async () => {
    const home = await project();
    const dev = startDev(home);
    await eventually(() => expect(dev.text()).toMatch(/See its status:\n.*\n/), longTimeouts);
    expect(dev.text()).toContain('npx leasehold init');
    const [url, key] = [/running at (\S+)/, /Key of tenant "demo": (\S+)/].map((part) => part.exec(dev.text())?.[1]);
    expect((await fetch(`${url}/`)).headers.get('content-type')).toContain('text/html');
    await leasehold(home, 'init');
    await eventually(() => expect(dev.text()).toMatch(/running at \S+ with hello\n/), longTimeouts);
    const request = { type: 'hello', payload: { name: 'Ann' } };
    const headers = { authorization: `Bearer ${key}`, 'content-type': 'application/json' };
    // The files are written one after the other: the daemon may restart once more.
    const id = await eventually(async () => {
      const enqueued = await fetch(`${url}/api/jobs`, { method: 'POST', headers, body: JSON.stringify(request) });
      expect(enqueued.status).toBe(201);
      return ((await enqueued.json()) as { id: string }).id;
    }, longTimeouts);
    await eventually(async () => {
      const job = await (await fetch(`${url}/api/jobs/${id}`, { headers })).json();
      expect(job).toMatchObject({ status: 'SUCCESS', result: { greeting: 'Hello, Ann!' } });
    }, longTimeouts);
    await writeFile(join(home, 'jobs', 'broken.ts'), 'export default {');
    await eventually(() => expect(dev.text()).toContain('starts again when a file of your jobs changes'), longTimeouts);
    const shown = dev.text().length;
    await rm(join(home, 'jobs', 'broken.ts'));
    await eventually(() => expect(dev.text().slice(shown)).toMatch(/with hello\n/), longTimeouts);
    dev.process.kill('SIGINT');
    expect(await dev.ended).toEqual([0, null]);
    expect(await postmasterPid(join(home, '.leasehold', 'postgres'))).toBeUndefined();
  });
});

/** An empty directory in which the package is installed. */
async function project(): Promise<string> {
  const home = await temporaryDirectory('project');
  await chmod(home, 0o755);
  await symlink(join(installed.home, 'node_modules'), join(home, 'node_modules'));
  return home;
}

const program = () => join(installed.home, 'node_modules', '.bin', 'leasehold');

function leasehold(cwd: string, ...args: string[]) {
  return promisify(execFile)(program(), args, { cwd });
}

function startDev(cwd: string) {
  const { DATABASE_URL: _, NODE_ENV: __, ...env } = process.env;
  const child = spawn(program(), ['dev'], { cwd, env: { ...env, PORT: '0' }, stdio: ['ignore', 'pipe', 'pipe'] });
  let text = '';
  for (const stream of [child.stdout, child.stderr]) stream.on('data', (chunk) => (text += chunk));
  const ended = once(child, 'exit');
  onTestFinished(async () => {
    child.kill('SIGTERM');
    await ended;
  });
  return { process: child, ended, text: () => text };
}

/** Files of packages that a program has read, by their format: the next one with the same options takes them as they are. */
const parsed = new Map<string, ts.SourceFile>();

/**
 * What the compiler finds wrong with the files, as text. They are read from memory, as if they were in the directory.
 * `ours`: of the declarations only those of this package are checked.
 */
function compile(files: Record<string, string>, way: ts.CompilerOptions, checked: 'all' | 'ours' = 'all'): string {
  const options: ts.CompilerOptions = {
    target: ts.ScriptTarget.ES2023,
    strict: true,
    exactOptionalPropertyTypes: true,
    noUncheckedIndexedAccess: true,
    noPropertyAccessFromIndexSignature: true,
    allowImportingTsExtensions: true,
    skipLibCheck: false,
    // Those of the compiler itself are not ours to check.
    skipDefaultLibCheck: true,
    noEmit: true,
    types: [],
    ...way,
  };
  const host = ts.createCompilerHost(options);
  const texts = new Map(Object.entries(files).map(([name, text]) => [join(installed.home, name), text]));
  const { readFile, fileExists, getSourceFile } = host;
  host.getSourceFile = (file, version, ...rest) => {
    const key = JSON.stringify([file, version]);
    const known = parsed.get(key) ?? getSourceFile(file, version, ...rest);
    if (known !== undefined && !texts.has(file)) parsed.set(key, known);
    return known;
  };
  host.readFile = (file) => texts.get(file) ?? readFile(file);
  host.fileExists = (file) => texts.has(file) || fileExists(file);
  // Its directories are in memory too.
  host.directoryExists = () => true;
  host.getCurrentDirectory = () => installed.home;
  const program = ts.createProgram([...texts.keys()], options, host);
  if (checked === 'all') return ts.formatDiagnostics(ts.getPreEmitDiagnostics(program), host);
  const declarations = join(installed.home, 'node_modules', 'leasehold', 'dist');
  const own = program
    .getSourceFiles()
    .filter(({ fileName }) => texts.has(fileName) || fileName.startsWith(declarations));
  expect(own.length).toBeGreaterThan(20);
  const found = own.flatMap((file) => [
    ...program.getSyntacticDiagnostics(file),
    ...program.getSemanticDiagnostics(file),
  ]);
  return ts.formatDiagnostics([...program.getOptionsDiagnostics(), ...found], host);
}
