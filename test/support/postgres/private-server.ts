// A database server of the test's own, durable like a real one, that can be stopped the hard way.
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { onTestFinished } from 'vitest';
import { Database } from '../../../server/database/database.ts';
import { quoteSchema } from '../../../server/database/identifiers.ts';
import { migrateControl } from '../../../server/database/migrations/migrate.ts';
import { findBinaries, findRunner } from '../../../server/embedded-postgres/binaries.ts';
import { clusterUrl, freePort, initCluster } from '../../../server/embedded-postgres/cluster.ts';
import { createLogger } from '../../../server/kernel/logger.ts';
import { eventually } from '../eventually.ts';
import { defaultSlug, provisionForTest } from '../provision.ts';
import type { TenantContext } from './database.ts';
import { type CrashableServer, Postmaster } from './postmaster.ts';

export interface PrivateServer extends TenantContext, CrashableServer {
  /** `halt` and `restart`. */
  crash(): Promise<void>;
}

/** A standby that was away for some restarts of its primary finds the log that it needs. */
export const keepLog = 'wal_keep_size=1GB';

export async function startPrivateServer(): Promise<PrivateServer> {
  const runner = await findRunner();
  const base = await mkdtemp(join(runner.ids.uid === undefined ? tmpdir() : '/tmp', 'leasehold-private-'));
  await runner.own(base);
  const place = { binaries: await findBinaries(runner), runner, directory: join(base, 'data') };
  await initCluster(place, 'test', ['--no-sync']);
  const port = await freePort();
  // Commits reach the operating system: a crash of the server alone loses none.
  const settings = ['listen_addresses=127.0.0.1', `unix_socket_directories=${base}`, 'fsync=off', keepLog];
  const postmaster = new Postmaster(place, { port, settings, logFile: join(base, 'log') });
  const url = clusterUrl(port, 'test');
  const db = new Database({ url, poolMax: 4, logger: createLogger('silent') });
  const answers = () => eventually(() => db.query('select 1'), { timeoutMs: 60_000, everyMs: 100 });
  const restart = async () => {
    postmaster.start();
    await answers();
  };
  onTestFinished(async () => {
    await db.close();
    await postmaster.halt();
    await rm(base, { recursive: true, force: true });
  });
  await answers();
  await migrateControl(db, createLogger('silent'));
  const tenant = await provisionForTest(db, defaultSlug);
  return {
    db,
    url,
    tenant,
    schema: quoteSchema(tenant.schemaName),
    crash: async () => {
      await postmaster.halt();
      await restart();
    },
    halt: () => postmaster.halt(),
    restart,
    place,
    port,
  };
}
