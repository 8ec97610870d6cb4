// One daemon per data directory. The lock file names its owner so exactly that a lock left by a
// killed process is told from a live one, even when the pid was given to somebody else.
import { randomBytes } from 'node:crypto';
import { link, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { EmbeddedPostgresError } from './embedded-postgres-error.ts';
import { processIdentity } from './process-identity.ts';

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
  // Between reading and renaming another starter may have put its own lock there: give it back.
  const moved = await readFile(aside, 'utf8').catch(() => undefined);
  if (moved !== undefined && moved !== content) await link(aside, file).catch(() => {});
  await rm(aside, { force: true });
}
