// The environment of a run: on the server of the test run, or with a separate server and a synchronous standby.
import { onTestFinished } from 'vitest';
import { Database } from '../../server/database/database.ts';
import { createLogger } from '../../server/kernel/logger.ts';
import type { TenantContext } from '../support/postgres/database.ts';
import { startPrivateServer } from '../support/postgres/private-server.ts';
import { startStandby } from '../support/postgres/standby.ts';
import { World } from './world.ts';

export async function createSharedWorld(context: TenantContext, seed: number): Promise<World> {
  return World.create({ context, seed });
}

export async function createPrivateWorld(seed: number): Promise<World> {
  const server = await startPrivateServer();
  const standby = await startStandby(server, { synchronous: true });
  const ports = [server.port, standby.port];
  const url = server.url.replace(/@[^/]*/, `@${ports.map((port) => `127.0.0.1:${port}`).join(',')}`);
  const db = new Database({ url, poolMax: 4, logger: createLogger('silent') });
  onTestFinished(() => db.close());
  return World.create({ context: { ...server, url, db }, ports, servers: { primary: server, standby }, seed });
}
