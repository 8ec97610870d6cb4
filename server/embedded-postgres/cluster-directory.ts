// The data directory of the embedded Postgres. Checks owner, free space and major version, and that the user Postgres
// runs as can reach it.
import { execFile } from 'node:child_process';
import { createHash, randomBytes } from 'node:crypto';
import { link, lstat, mkdir, readFile, realpath, rename, rm, stat, statfs, symlink, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { promisify } from 'node:util';
import { findBinaries, findRunner, type Runner } from './binaries.ts';
import { type ClusterDirectory, initCluster } from './cluster.ts';
import { EmbeddedPostgresError } from './embedded-postgres-error.ts';

// A new cluster with its first WAL takes about 60 MB; the rest is for work.
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

// If root starts Postgres, it runs as another user, which cannot enter directories below /root. The data is then kept
// in a shared system directory, with a symlink at the requested path.
async function chooseDirectory(data: string, runner: Runner): Promise<string> {
  if (await runner.canReach(dirname(data))) {
    // A link whose data is gone.
    await rm(data, { force: true });
    return data;
  }
  const target = join(runner.sharedDirectory, `data-${createHash('sha256').update(data).digest('hex').slice(0, 16)}`);
  await mkdir(dirname(target), { recursive: true, mode: 0o755 });
  if (await lstat(target).catch(() => undefined)) {
    // Left by a data directory that was deleted, or by a first start that was killed before it created its link.
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

// One daemon per data directory. The lock file identifies its owner by pid, boot and start time, so that the lock of a
// killed process is recognized as stale even if another process has the pid now.

interface DataLock {
  release(): Promise<void>;
}

export async function lockData(dataDir: string): Promise<DataLock> {
  const file = join(dataDir, 'daemon.lock');
  const mine = `${await processIdentity(process.pid)} ${randomBytes(4).toString('hex')}`;
  const draft = `${file}.${process.pid}-${randomBytes(4).toString('hex')}`;
  await writeFile(draft, mine, { mode: 0o644 });
  try {
    while (!(await linked(draft, file))) await removeIfStale(file, dataDir);
  } finally {
    await rm(draft, { force: true });
  }
  return {
    release: async () => {
      if ((await readFile(file, 'utf8').catch(() => '')) === mine) await rm(file, { force: true });
    },
  };
}

// A link appears with its contents in one step, but a file can be read between its creation and its first write.
async function linked(draft: string, file: string): Promise<boolean> {
  try {
    await link(draft, file);
    return true;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'EEXIST') return false;
    throw error;
  }
}

async function removeIfStale(file: string, dataDir: string): Promise<void> {
  const content = await readFile(file, 'utf8').catch(() => undefined);
  if (content === undefined) return;
  const pid = Number(content.split(' ')[0]);
  const alive = pid > 0 ? await processIdentity(pid) : undefined;
  if (alive !== undefined && content.startsWith(`${alive} `)) {
    throw new EmbeddedPostgresError(
      `another Leasehold (process ${pid}) is using the data in ${dataDir}; stop it, or set DATA_DIR to another directory`,
    );
  }
  const aside = `${file}.stale-${randomBytes(4).toString('hex')}`;
  await rename(file, aside).catch(() => {});
  // Between the read and the rename another daemon may have created its lock: restore it.
  const moved = await readFile(aside, 'utf8').catch(() => undefined);
  if (moved !== undefined && moved !== content) await link(aside, file).catch(() => {});
  await rm(aside, { force: true });
}

/** Identifies a process even if its pid is reused; undefined if there is no such process. */
async function processIdentity(pid: number): Promise<string | undefined> {
  if (process.platform === 'linux') {
    const stat = await readFile(`/proc/${pid}/stat`, 'utf8').catch(() => undefined);
    if (stat === undefined) return undefined;
    // The command name is in parentheses and may contain spaces: the fields are counted after it.
    const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
    const [state, startTicks] = [fields[0], fields[19]];
    if (state === 'Z' || state === 'X') return undefined;
    const boot = await readFile('/proc/sys/kernel/random/boot_id', 'utf8').catch(() => '');
    return `${pid} ${boot.trim()} ${startTicks}`;
  }
  if (process.platform === 'win32') return isAlive(pid) ? String(pid) : undefined;
  const { stdout } = await promisify(execFile)('ps', ['-o', 'lstart=', '-p', String(pid)]).catch(() => ({
    stdout: '',
  }));
  return stdout.trim() === '' ? undefined : `${pid} ${stdout.trim()}`;
}

/** True also for a process that may not be signalled. @internal Also used by the servers of the tests. */
export function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM';
  }
}
