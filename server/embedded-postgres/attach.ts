// Finds the embedded Postgres that a daemon keeps running, for others who only want to talk to it.
import { join, resolve } from 'node:path';
import { clusterUrl } from './cluster.ts';
import { readCredentials } from './credentials.ts';
import { explainFileError } from './embedded-postgres-error.ts';
import { postmasterPid } from './postmaster.ts';
import { embeddedDatabaseName } from './start.ts';

/** The URL of the Postgres that runs on this DATA_DIR; undefined if none does. */
export async function findRunningPostgres(dataDir: string): Promise<string | undefined> {
  const directory = resolve(dataDir);
  if ((await postmasterPid(join(directory, 'postgres'))) === undefined) return undefined;
  try {
    const { port, password } = await readCredentials(directory);
    return clusterUrl(port, password, embeddedDatabaseName);
  } catch (error) {
    throw explainFileError(error, directory);
  }
}
