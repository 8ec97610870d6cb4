// One daemon per data directory. The lock file identifies its owner by pid, boot and start time, so that the lock of a
// killed process is recognized as stale even if another process has the pid now.
import { execFile } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { link, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { EmbeddedPostgresError } from './embedded-postgres-error.ts';

export interface DataLock {
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

// A link appears with its contents in one step; a file that is opened first can be read empty.
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

/** Unique to a process, also when its pid is reused; undefined if there is no such process. */
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

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM';
  }
}
