// The Python package as pip gets it: every module and the marker of its types, importable from where it was built.
import { spawnSync } from 'node:child_process';
import { cp, readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { expect, test, vi } from 'vitest';
import { packageRoot, packageVersion } from '../../../server/kernel/environment.ts';
import { temporaryDirectory } from '../../support/temporary.ts';

vi.setConfig({ testTimeout: 120_000 });

const source = join(packageRoot(), 'scripts', 'clients', 'python');
const has = (module: string) => spawnSync('python3', ['-c', `import ${module}`]).status === 0;
const hasPython = has('compileall');
// An older setuptools does not read pyproject.toml. The package is built without pip, which would need a network.
const hasSetuptools = has('setuptools.config.pyprojecttoml');
const hasMypy = has('mypy');
const skipped = (isHere: boolean, what: string) => (isHere ? '' : ` (skipped: no ${what})`);

function python(args: string[], cwd: string): string {
  const { status, stdout, stderr } = spawnSync('python3', args, { cwd, encoding: 'utf8' });
  expect(status, stdout + stderr).toBe(0);
  return stdout;
}

async function copy(): Promise<string> {
  const directory = join(await temporaryDirectory('python'), 'package');
  await cp(source, directory, { recursive: true, filter: (path) => !path.includes('__pycache__') });
  return directory;
}

test('has the version of the project', async () => {
  expect(await readFile(join(source, 'pyproject.toml'), 'utf8')).toContain(`\nversion = "${packageVersion()}"\n`);
});

test.skipIf(!hasPython)(`compiles${skipped(hasPython, 'Python')}`, async () => {
  python(['-W', 'error', '-m', 'compileall', '-q', 'leasehold'], await copy());
});

test.skipIf(!hasSetuptools)(`is built with all its modules${skipped(hasSetuptools, 'setuptools')}`, async () => {
  const directory = await copy();
  python(['-c', 'import setuptools; setuptools.setup(script_args=["-q", "build", "--build-lib", "built"])'], directory);
  const names = (await readdir(join(source, 'leasehold'))).filter((name) => name !== '__pycache__');
  expect(names).toContain('py.typed');
  expect((await readdir(join(directory, 'built', 'leasehold'))).toSorted()).toEqual(names.toSorted());
  const imported = 'import leasehold; print(all(hasattr(leasehold, name) for name in leasehold.__all__))';
  expect(python(['-c', imported], join(directory, 'built'))).toBe('True\n');
});

test.skipIf(!hasMypy)(`has type hints that mypy accepts${skipped(hasMypy, 'mypy')}`, async () => {
  expect(python(['-m', 'mypy', '--strict', 'leasehold'], await copy())).toContain('no issues found');
});
