// The package as users get it: packed by npm, and installed from the packed file into an empty directory.
import { execFile } from 'node:child_process';
import { existsSync } from 'node:fs';
import { mkdir, mkdtemp, readFile, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll } from 'vitest';
import { packageRoot } from '../../../server/kernel/environment.ts';

const run = promisify(execFile);
const root = packageRoot();

export interface Installed {
  /** The directory that has the package in its node_modules. */
  home: string;
  /** The paths in the packed file. */
  files: string[];
}

interface LockEntry {
  version?: string;
  link?: boolean;
  dev?: boolean;
  devOptional?: boolean;
}

/** Packed and installed once for a file of tests. */
export function useInstalledPackage(): Installed {
  const installed: Installed = { home: '', files: [] };
  beforeAll(async () => {
    installed.home = await mkdtemp(join(tmpdir(), 'leasehold-package-'));
    const { stdout } = await run('npm', ['pack', '--json', '--silent', '--pack-destination', installed.home], {
      cwd: root,
      maxBuffer: 64 * 1024 ** 2,
    });
    const [packed] = JSON.parse(stdout.slice(stdout.indexOf('['))) as { filename: string; files: { path: string }[] }[];
    if (packed === undefined) throw new Error('npm pack answered with nothing');
    installed.files = packed.files.map(({ path }) => path);
    await install(installed.home, packed.filename);
  }, 600_000);
  afterAll(() => rm(installed.home, { recursive: true, force: true }));
  return installed;
}

/** With the versions of our own lock: npm then asks the registry for nothing that its cache has. */
async function install(home: string, file: string): Promise<void> {
  await writeFile(join(home, 'package.json'), '{ "type": "module" }\n');
  const lock = JSON.parse(await readFile(join(root, 'package-lock.json'), 'utf8'));
  const packages = Object.entries(lock.packages as Record<string, LockEntry>).filter(
    ([path, { link, dev, devOptional }]) => path.startsWith('node_modules/') && !link && !dev && !devOptional,
  );
  const entries = { '': {}, ...Object.fromEntries(packages) };
  await writeFile(join(home, 'package-lock.json'), JSON.stringify({ lockfileVersion: 3, packages: entries }));
  const args = ['install', join(home, file), '--prefer-offline', '--no-audit', '--no-fund', '--loglevel=error'];
  try {
    await run('npm', args, { cwd: home });
  } catch (error) {
    if (!/ENOTCACHED|ENOTFOUND|EAI_AGAIN|ECONN|ETIMEDOUT/.test(String((error as { stderr?: string }).stderr)))
      throw error;
    console.warn('No registry and no cache: the package is unpacked beside the packages of this clone.');
    await unpack(
      home,
      file,
      packages.map(([path]) => path),
    );
  }
}

async function unpack(home: string, file: string, paths: string[]): Promise<void> {
  const target = join(home, 'node_modules', 'leasehold');
  await mkdir(target, { recursive: true });
  await run('tar', ['-xzf', join(home, file), '-C', target, '--strip-components=1']);
  for (const path of paths.filter((one) => one.lastIndexOf('node_modules/') === 0 && existsSync(join(root, one)))) {
    await mkdir(dirname(join(home, path)), { recursive: true });
    await symlink(join(root, path), join(home, path));
  }
}
