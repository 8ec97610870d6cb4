// A copy of the program that every user of the machine can read: the clone itself may lie below a
// directory that is closed to others, as root's home is.
import { chmod, cp, mkdir, mkdtemp, readFile, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { onTestFinished } from 'vitest';
import { packageRoot } from '../../../server/kernel/environment.ts';

/** A directory that every user can enter, even if TMPDIR is closed. It is deleted with the test. */
export async function openDirectory(): Promise<string> {
  const directory = await mkdtemp('/tmp/leasehold-open-');
  onTestFinished(() => rm(directory, { recursive: true, force: true }));
  await chmod(directory, 0o755);
  return directory;
}

/** Server and test programs with the named packages and all that these need; returns its root. */
export async function copyForEveryone(packages: readonly string[]): Promise<string> {
  const root = packageRoot();
  const copy = await openDirectory();
  for (const part of ['package.json', 'server', join('test', 'support')]) {
    await cp(join(root, part), join(copy, part), { recursive: true });
  }
  const copied = new Set<string>();
  for (const name of packages) await copyPackage(name, root, copy, copied);
  return copy;
}

async function copyPackage(name: string, root: string, copy: string, copied: Set<string>): Promise<void> {
  const path = join('node_modules', name);
  if (copied.has(path)) return;
  copied.add(path);
  const manifest = await readFile(join(root, path, 'package.json'), 'utf8').catch(() => undefined);
  // An optional package of another platform.
  if (manifest === undefined) return;
  await mkdir(join(copy, path), { recursive: true });
  await cp(join(root, path), join(copy, path), { recursive: true, verbatimSymlinks: true });
  const { dependencies = {}, optionalDependencies = {} } = JSON.parse(manifest) as Record<string, object>;
  for (const needed of Object.keys({ ...dependencies, ...optionalDependencies })) {
    await copyPackage(needed, root, copy, copied);
  }
}
