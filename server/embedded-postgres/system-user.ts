// The user that runs the embedded Postgres. Postgres refuses to run as root; the user that is chosen then may be unable
// to enter the directories of the installation.
import { execFile } from 'node:child_process';
import { chown, stat } from 'node:fs/promises';
import { dirname, resolve } from 'node:path';
import { promisify } from 'node:util';
import { EmbeddedPostgresError } from './embedded-postgres-error.ts';

const run = promisify(execFile);

export interface Runner {
  /** For spawn; empty when Postgres runs as the current user. */
  ids: { uid?: number; gid?: number };
  /** A system directory that both users can enter. */
  sharedDirectory: string;
  canReach(path: string): Promise<boolean>;
  /** Makes the user that runs Postgres the owner of a file or directory. */
  own(path: string): Promise<void>;
}

/** `owner`: of the existing data, if any. Only the owner of a data directory may run Postgres on it. */
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

/** Whether a user may enter every existing directory of the path. */
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
