// The data directory of the embedded Postgres. Checks owner, free space and major version, and that the user Postgres
// runs as can reach it.
import { createHash } from 'node:crypto';
import { lstat, mkdir, readFile, realpath, rename, rm, stat, statfs, symlink } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { findBinaries } from './binaries.ts';
import { type ClusterDirectory, initCluster } from './cluster.ts';
import { EmbeddedPostgresError } from './embedded-postgres-error.ts';
import { findRunner, type Runner } from './system-user.ts';

// A new cluster with its first WAL takes about 60 MB; the rest is room to work in.
const neededMb = { init: 200, start: 50 };

/** The cluster's directory below an existing, locked `dataDir`; creates the cluster at the first start. */
export async function prepareClusterDirectory(
  dataDir: string,
  password: string,
  onCreate: () => void,
): Promise<ClusterDirectory> {
  const data = join(dataDir, 'postgres');
  const owner = await stat(data).catch(() => undefined);
  refuseForeignOwner(data, owner);
  const runner = await findRunner(owner);
  const binaries = await findBinaries(runner);
  await refuseFullDisk(owner ? data : dataDir, owner ? neededMb.start : neededMb.init);
  const cluster = { binaries, runner, directory: data };
  if (owner) await refuseOtherVersion(data, binaries.major);
  else {
    onCreate();
    await createCluster(cluster, password);
  }
  return { ...cluster, directory: await reachable(data, runner) };
}

function refuseForeignOwner(data: string, owner: { uid: number } | undefined): void {
  const me = process.getuid?.();
  if (owner === undefined || me === undefined || me === 0 || owner.uid === me) return;
  throw new EmbeddedPostgresError(
    `the data in ${data} belongs to another user (uid ${owner.uid}); start Leasehold as that user, ` +
      'change the owner, or set DATA_DIR elsewhere',
  );
}

async function refuseFullDisk(path: string, needed: number): Promise<void> {
  const disk = await statfs(path);
  const freeMb = Math.floor((disk.bavail * disk.bsize) / 1024 ** 2);
  if (freeMb >= needed) return;
  throw new EmbeddedPostgresError(
    `the disk of ${path} has ${freeMb} MB free and Postgres needs at least ${needed} MB; free some or set DATA_DIR elsewhere`,
  );
}

async function refuseOtherVersion(data: string, ours: string): Promise<void> {
  const theirs = (await readFile(join(data, 'PG_VERSION'), 'utf8').catch(() => '')).trim();
  if (theirs === ours) return;
  const found = theirs === '' ? 'is not a Postgres data directory' : `was written by Postgres ${theirs}`;
  throw new EmbeddedPostgresError(
    `${data} ${found}, and this Leasehold brings Postgres ${ours}. It was left untouched. Move your data with pg_dump ` +
      `from the version that wrote it, or set DATA_DIR to another directory`,
  );
}

// initdb writes to a temporary name, so that a kill leaves nothing that looks like a cluster.
async function createCluster(cluster: ClusterDirectory, password: string): Promise<void> {
  const target = await chooseDirectory(cluster.directory, cluster.runner);
  const draft = `${target}.new`;
  await rm(draft, { recursive: true, force: true });
  await mkdir(draft, { mode: 0o700 });
  await cluster.runner.own(draft);
  await initCluster({ ...cluster, directory: draft }, password);
  await rename(draft, target);
  if (target !== cluster.directory) await symlink(target, cluster.directory);
}

// Postgres started by root runs as another user, which cannot enter directories below /root. Then the data is kept in
// a shared system directory, with a symlink to it at the requested path.
async function chooseDirectory(data: string, runner: Runner): Promise<string> {
  if (await runner.canReach(dirname(data))) {
    // A link whose data is gone.
    await rm(data, { force: true });
    return data;
  }
  const target = join(runner.sharedDirectory, `data-${createHash('sha256').update(data).digest('hex').slice(0, 16)}`);
  await mkdir(dirname(target), { recursive: true, mode: 0o755 });
  if (await lstat(target).catch(() => undefined)) {
    // Left by a data directory that was deleted, or by a first start that was killed before its link.
    await rename(target, `${target}.old-${Date.now()}`);
  }
  await rm(data, { force: true });
  return target;
}

async function reachable(data: string, runner: Runner): Promise<string> {
  const real = await realpath(data);
  if (await runner.canReach(dirname(real))) return real;
  throw new EmbeddedPostgresError(
    `Postgres cannot run as root, and its user cannot enter ${real}; open the directories above it or set DATA_DIR elsewhere`,
  );
}
