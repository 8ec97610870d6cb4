// The build that daemons of the tests run, and the handlers and programs of the tests compiled for it: a process that is
// started from TypeScript costs twice the CPU time.
import { execFile } from 'node:child_process';
import { join, relative } from 'node:path';
import { promisify } from 'node:util';
import { build } from 'esbuild';
import { beforeAll, inject } from 'vitest';
import { packageRoot } from '../../../server/kernel/environment.ts';

const root = packageRoot();
const compiled = new Map<string, Promise<string>>();
let made: Promise<void> | undefined;

/** Builds, unless the build is newer than the source, and waits for other files that build. */
export function buildOnce(): Promise<void> {
  made ??= makeBuild();
  return made;
}

export function useBuild(): void {
  beforeAll(buildOnce, 600_000);
}

/** A program of the tests, compiled before they run. */
export function useProgram(file: string): { path: string } {
  const program = { path: '' };
  beforeAll(async () => {
    await buildOnce();
    program.path = await compileForBuild(file);
  }, 600_000);
  return program;
}

/** Compiles a file, named from the root; returns where it is. It uses the modules of the build, as the daemon does. */
export function compileForBuild(file: string): Promise<string> {
  const known = compiled.get(file) ?? compile(file);
  compiled.set(file, known);
  return known;
}

async function compile(file: string): Promise<string> {
  const outfile = join(inject('runDirectory'), `${file.replace(/\W/g, '-')}-${process.pid}.mjs`);
  await build({
    entryPoints: [join(root, file)],
    outfile,
    bundle: true,
    packages: 'external',
    platform: 'node',
    format: 'esm',
    target: 'node20',
    plugins: [
      {
        name: 'modules-of-the-build',
        setup({ onResolve }) {
          onResolve({ filter: /\/server\/.*\.ts$/ }, ({ path, resolveDir }) => {
            const module = relative(join(root, 'server'), join(resolveDir, path)).replace(/\.ts$/, '.js');
            return { path: join(root, 'dist', module), external: true };
          });
        },
      },
    ],
  });
  return outfile;
}

async function makeBuild(): Promise<void> {
  await promisify(execFile)(process.execPath, ['scripts/bootstrap.mjs', 'build'], { cwd: root });
}
