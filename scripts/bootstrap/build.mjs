// Builds dist/ when the source changed.
import { spawn } from 'node:child_process';
import { existsSync, readdirSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import { hashOf, readOr, root, UserError } from './files.mjs';
import { withProgress } from './progress.mjs';

const dist = join(root, 'dist');
const mark = join(dist, '.leasehold-source');

export function isStale() {
  return readOr(mark) !== sourceHash();
}

export async function buildWhenStale() {
  if (!isStale()) return;
  const hash = sourceHash();
  // As deep as dist: its source maps name the sources by relative paths.
  const fresh = join(root, '.leasehold-build');
  rmSync(fresh, { recursive: true, force: true });
  const code = await withProgress('Building', () => run(join(root, 'scripts', 'build', 'build.mjs'), ['all', fresh]));
  if (code !== 0) throw new UserError('the build failed; its errors are above');
  writeFileSync(join(fresh, basename(mark)), hash);
  // Swapped in at once: a build cut short is never run, and a daemon that runs keeps finding its files.
  rmSync(`${fresh}-old`, { recursive: true, force: true });
  if (existsSync(dist)) renameSync(dist, `${fresh}-old`);
  renameSync(fresh, dist);
  rmSync(`${fresh}-old`, { recursive: true, force: true });
}

/** The types of the package, into the build that is there. */
export async function writeDeclarations() {
  const script = join(root, 'scripts', 'build', 'declarations.mjs');
  const code = await withProgress('Writing declarations', () => run(script, [dist]));
  if (code !== 0) throw new UserError('the declarations could not be written; the errors are above');
}

function sourceHash() {
  const source = readdirSync(join(root, 'server'), { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath ?? entry.path, entry.name))
    .sort();
  return hashOf([...source, join(root, 'scripts', 'build', 'build.mjs'), join(root, 'package-lock.json')]);
}

function run(script, args) {
  const child = spawn(process.execPath, [script, ...args], { cwd: root, stdio: ['ignore', 'inherit', 'inherit'] });
  return new Promise((resolve, reject) => {
    child.once('error', reject);
    child.once('exit', resolve);
  });
}
