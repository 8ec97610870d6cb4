// The port and the password of the embedded Postgres, kept beside its data for its owner only.
import { randomBytes } from 'node:crypto';
import { chmod, readFile, rename, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { freePort } from './cluster.ts';
import { EmbeddedPostgresError } from './embedded-postgres-error.ts';

export interface Credentials {
  port: number;
  password: string;
}

export const credentialsFile = (dataDir: string): string => join(dataDir, 'postgres.json');

/** Those of the last start, or new ones. */
export async function readCredentials(dataDir: string): Promise<Credentials> {
  const text = await readFile(credentialsFile(dataDir), 'utf8').catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return undefined;
    throw error;
  });
  if (text === undefined) {
    const credentials = { port: await freePort(), password: randomBytes(24).toString('base64url') };
    await writeCredentials(dataDir, credentials);
    return credentials;
  }
  try {
    const found = JSON.parse(text) as Credentials;
    if (typeof found.password === 'string' && Number.isInteger(found.port)) return found;
  } catch {
    // Not JSON: the words below.
  }
  throw new EmbeddedPostgresError(
    `${credentialsFile(dataDir)} should hold the database's port and password, and does not`,
  );
}

export async function writeCredentials(dataDir: string, credentials: Credentials): Promise<void> {
  const file = credentialsFile(dataDir);
  await writeFile(`${file}.new`, `${JSON.stringify(credentials)}\n`, { mode: 0o600 });
  // The mode above counts only for a file that did not exist.
  await chmod(`${file}.new`, 0o600);
  await rename(`${file}.new`, file);
}
