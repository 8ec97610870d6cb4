// Runs a command directly on the database: this process serves the routes of the daemon on the loopback interface, for
// this command alone. So the command runs the same code as a command over HTTP.
import { randomBytes, timingSafeEqual } from 'node:crypto';
import type { AddressInfo } from 'node:net';
import express from 'express';
import { LeaseholdClient } from '../client/client.ts';
import { createLeasehold } from '../embed/leasehold.ts';
import { problem } from '../kernel/errors.ts';
import { readTenantPage } from '../tenants/tenant-store.ts';
import type { ConnectionOptions, Session } from './session.ts';

export async function connectToDatabase(
  session: Session,
  options: ConnectionOptions,
  as: 'tenant' | 'operator',
): Promise<LeaseholdClient> {
  const tenant = as === 'operator' ? undefined : await tenantOf(session, options);
  // Links to questions must lead to the daemon, not to this process.
  const { streamPollSeconds, tenantConcurrency, publicUrl, host, port } = session.config;
  const leasehold = await createLeasehold({
    databaseUrl: await session.databaseUrl(),
    settings: {
      streamPollSeconds,
      workerConcurrency: 0,
      tenantConcurrency,
      publicUrl: publicUrl || `http://${host}:${port}`,
    },
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
  const address = server.address() as AddressInfo;
  return new LeaseholdClient({ url: `http://127.0.0.1:${address.port}`, apiKey: token, retryForMs: 0 });
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
