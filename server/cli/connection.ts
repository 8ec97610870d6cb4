// Connects a command to the API: over HTTP with a key, or directly on the database.
import type { Command } from 'commander';
import { LeaseholdClient } from '../client/client.ts';
import { problem } from '../kernel/errors.ts';
import type { ConnectionOptions, Session } from './session.ts';

export type { ConnectionOptions };

// A person waits, and a daemon that restarts is back by then.
const retryForMs = 10_000;

export function withConnection(command: Command): Command {
  return command
    .option('--url <url>', 'the daemon to ask (LEASEHOLD_URL); without one the database is used directly')
    .option('--key <key>', 'the API key (LEASEHOLD_KEY)')
    .option('--tenant <slug>', 'the tenant, without --url (LEASEHOLD_TENANT); default: the only one');
}

/** `operator`: for requests without a tenant, such as the list of daemons. */
export async function connect(
  session: Session,
  options: ConnectionOptions,
  as: 'tenant' | 'operator' = 'tenant',
): Promise<LeaseholdClient> {
  const url = options.url ?? session.env.LEASEHOLD_URL;
  if (url === undefined || url === '') {
    // Loaded only here: a command over HTTP starts without the code of the daemon.
    const { connectToDatabase } = await import('./database-connection.ts');
    return connectToDatabase(session, options, as);
  }
  const apiKey = options.key ?? session.env.LEASEHOLD_KEY ?? '';
  if (apiKey === '') throw problem('INVALID_FIELD', 'give the API key with --key or LEASEHOLD_KEY');
  if (!URL.canParse(url))
    throw problem('INVALID_FIELD', `--url must be an address such as http://127.0.0.1:8080, not ${url}`);
  return new LeaseholdClient({ url, apiKey, retryForMs });
}
