// How a command reaches the API: over HTTP with a key, or directly on the database. Directly means that the routes of the
// daemon are served in this process, on the loopback interface, for this command alone: both ways run the same code.
import { randomBytes, timingSafeEqual } from 'node:crypto';
import type { AddressInfo } from 'node:net';
import type { Command } from 'commander';
import express from 'express';
import { LeaseholdClient } from '../client/client.ts';
import { createLeasehold } from '../embed/leasehold.ts';
import { problem } from '../kernel/errors.ts';
import { readTenantPage } from '../tenants/tenant-store.ts';
import type { Session } from './session.ts';

export interface ConnectionOptions {
  url?: string;
  key?: string;
  tenant?: string;
}

// A person waits: a daemon that restarts is back by then.
const retryForMs = 10_000;

export function withConnection(command: Command): Command {
  return command
    .option('--url <url>', 'the daemon to ask (LEASEHOLD_URL); without one the database is used directly')
    .option('--key <key>', 'the API key (LEASEHOLD_KEY)')
    .option('--tenant <slug>', 'the tenant, without --url (LEASEHOLD_TENANT); default: the only one');
}

/** `operator`: for what belongs to no tenant, such as the list of daemons. */
export async function connect(
  session: Session,
  options: ConnectionOptions,
  as: 'tenant' | 'operator' = 'tenant',
): Promise<LeaseholdClient> {
  const url = options.url ?? session.env.LEASEHOLD_URL;
  if (url === undefined || url === '') return connectToDatabase(session, options, as);
  const apiKey = options.key ?? session.env.LEASEHOLD_KEY ?? '';
  if (apiKey === '') throw problem('INVALID_FIELD', 'give the API key with --key or LEASEHOLD_KEY');
  if (!URL.canParse(url))
    throw problem('INVALID_FIELD', `--url must be an address such as http://127.0.0.1:8080, not ${url}`);
  return new LeaseholdClient({ url, apiKey, retryForMs });
}

async function connectToDatabase(session: Session, options: ConnectionOptions, as: 'tenant' | 'operator') {
  const tenant = as === 'operator' ? undefined : await tenantOf(session, options);
  const leasehold = await createLeasehold({
    databaseUrl: await session.databaseUrl(),
    settings: { streamPollSeconds: session.config.streamPollSeconds, workerConcurrency: 0 },
    logger: false,
  });
  session.onClose(() => leasehold.stop({ graceSeconds: 0 }));
  const token = randomBytes(32).toString('hex');
  const app = express().use(
    leasehold.router({
      authorize: (request) =>
        isSame(request.headers.authorization ?? '', `Bearer ${token}`) ? { tenant, actor: 'cli' } : undefined,
    }),
  );
  const server = app.listen(0, '127.0.0.1');
  await new Promise((resolve, reject) => {
    server.once('listening', resolve);
    server.once('error', reject);
  });
  session.onClose(
    () =>
      new Promise((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections();
      }),
  );
  const { port } = server.address() as AddressInfo;
  return new LeaseholdClient({ url: `http://127.0.0.1:${port}`, apiKey: token, retryForMs: 0 });
}

async function tenantOf(session: Session, options: ConnectionOptions): Promise<string> {
  const given = options.tenant ?? session.env.LEASEHOLD_TENANT;
  if (given !== undefined && given !== '') return given;
  const tenants = await readTenantPage(await session.database(), 2);
  const [only] = tenants;
  if (only !== undefined && tenants.length === 1) return only.slug;
  throw problem(
    'INVALID_FIELD',
    only === undefined
      ? 'there is no tenant yet; create one with `leasehold tenants create <slug>`'
      : 'say which tenant with --tenant <slug>, or give --url and --key',
  );
}

function isSame(given: string, wanted: string): boolean {
  return given.length === wanted.length && timingSafeEqual(Buffer.from(given), Buffer.from(wanted));
}
