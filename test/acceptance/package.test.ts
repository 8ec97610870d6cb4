// The package from its packed file: what is in it, its types in every way of resolving modules, its entry points.
import { execFile } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { promisify } from 'node:util';
import ts from 'typescript';
import { describe, expect, test, vi } from 'vitest';
import { packageRoot } from '../../server/kernel/environment.ts';
import { readSnippets } from '../support/docs.ts';
import { useInstalledPackage } from '../support/package/installed.ts';

vi.setConfig({ testTimeout: 240_000 });

const installed = useInstalledPackage();
const manifest = JSON.parse(readFileSync(join(packageRoot(), 'package.json'), 'utf8')) as {
  exports: Record<string, { types: string } | string>;
};
const entryPoints = Object.keys(manifest.exports)
  .filter((name) => !name.endsWith('.json'))
  .map((name) => join('leasehold', name));

test('holds what users need and nothing else', () => {
  const folders = new Set(installed.files.map((file) => file.split('/')[0]));
  expect([...folders].sort()).toEqual(['LICENSE', 'README.md', 'dist', 'migrations', 'package.json', 'server']);
  expect(
    installed.files.filter((file) => /test|spec|\.leasehold-source|tsx$|\.css$/.test(file.replace('/testing/', '/'))),
  ).toEqual(installed.files.filter((file) => /^dist\/dashboard\/assets\/.*\.css$|\/test-run\./.test(file)));
  expect(installed.files).toContain('dist/dashboard/index.html');
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

test.each(entryPoints)('importing %s opens nothing: the process ends by itself', async (name) => {
  const code = `const entry = await import('${name}');
    console.log(JSON.stringify([Object.keys(entry).length, process.getActiveResourcesInfo().filter((r) => /Timeout|TCP|TLS|Worker|Port|Process|Signal|Immediate/.test(r))]));`;
  const { stdout } = await promisify(execFile)(process.execPath, ['--input-type=module', '-e', code], {
    cwd: installed.home,
    env: { PATH: process.env.PATH },
    timeout: 60_000,
  });
  const [exported, resources] = JSON.parse(stdout);
  expect(exported).toBeGreaterThan(0);
  expect(resources).toEqual([]);
});

describe('types', () => {
  const ways = [
    ['node16', { module: ts.ModuleKind.Node16, moduleResolution: ts.ModuleResolutionKind.Node16 }],
    ['nodenext', { module: ts.ModuleKind.NodeNext, moduleResolution: ts.ModuleResolutionKind.NodeNext }],
    ['bundler', { module: ts.ModuleKind.ESNext, moduleResolution: ts.ModuleResolutionKind.Bundler }],
  ] as const;

  test.each(ways)('resolve in strict mode with %s, the declarations checked too', async (_, way) => {
    const typed = entryPoints.filter((name) => name !== 'leasehold/server');
    const imports = typed.map((name, n) => `import * as entry${n} from '${name}';\nvoid entry${n};\n`);
    expect(compile({ 'entries.ts': imports.join('') }, way)).toBe('');
  });

  test('the code of the tutorial compiles in strict mode', async () => {
    const snippets = (await readSnippets('docs/tutorial.md')).filter(({ language, info }) => language === 'ts' && info);
    expect(snippets.length).toBeGreaterThan(1);
    const types = { types: ['node'], typeRoots: [join(packageRoot(), 'node_modules', '@types')] };
    const files = Object.fromEntries(snippets.map(({ info, text }) => [info, text]));
    expect(compile(files, { ...ways[1][1], ...types })).toBe('');
  });
});

/** What the compiler finds wrong with the files, as text. They are read from memory, as if they were in the directory. */
function compile(files: Record<string, string>, way: ts.CompilerOptions): string {
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
  const { readFile, fileExists } = host;
  host.readFile = (file) => texts.get(file) ?? readFile(file);
  host.fileExists = (file) => texts.has(file) || fileExists(file);
  // Its directories are in memory too.
  host.directoryExists = () => true;
  host.getCurrentDirectory = () => installed.home;
  return ts.formatDiagnostics(ts.getPreEmitDiagnostics(ts.createProgram([...texts.keys()], options, host)), host);
}
