// Once per run: one server, and in it the databases that every test file clones.
import { randomBytes } from 'node:crypto';
import { mkdtemp, rm, symlink } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { build } from 'esbuild';
import type { TestProject } from 'vitest/node';
import { Database } from '../../../server/database/database.ts';
import { migrateControl } from '../../../server/database/migrations/migrate.ts';
import { packageRoot } from '../../../server/kernel/environment.ts';
import { createLogger } from '../../../server/kernel/logger.ts';
import { citusCluster } from '../postgres/citus.ts';
import { startServer } from '../postgres/server.ts';
import { databaseUrl, defaultSlug, provisionForTest } from '../provision.ts';
import { heartbeatFile } from './threads.ts';

declare module 'vitest' {
  interface ProvidedContext {
    serverUrl: string;
    /** For files that all tests of the run may share; packages can be imported from there. */
    runDirectory: string;
    /** A database with the control schema; with `-tenant` behind it, one that has tenant acme as well. */
    templates: { empty: string; tenant: string };
  }
}

export default async function setup(project: TestProject): Promise<() => Promise<void>> {
  const server = await startServer();
  const logger = createLogger('silent');
  const admin = new Database({ url: server.url, poolMax: 1, logger });
  // A server that outlives the run may be shared with other runs.
  const run = randomBytes(4).toString('hex');
  const templates = { empty: `leasehold_${run}_empty`, tenant: `leasehold_${run}_tenant` };
  try {
    // A cluster cannot clone databases: there each file creates its own.
    if (!citusCluster()) await createTemplates(admin, server.url, templates);
  } catch (error) {
    await admin.close();
    await server.stop();
    throw error;
  }
  const runDirectory = await mkdtemp(join(tmpdir(), 'leasehold-run-'));
  await symlink(join(packageRoot(), 'node_modules'), join(runDirectory, 'node_modules'));
  await compileHeartbeat(join(runDirectory, heartbeatFile));
  project.provide('runDirectory', runDirectory);
  project.provide('serverUrl', server.url);
  project.provide('templates', templates);
  return async () => {
    for (const name of Object.values(templates)) {
      await admin.query(`drop database if exists ${name} with (force)`).catch(() => {});
    }
    await admin.close();
    await server.stop();
    await rm(runDirectory, { recursive: true, force: true });
  };
}

async function createTemplates(
  admin: Database,
  url: string,
  templates: { empty: string; tenant: string },
): Promise<void> {
  const logger = createLogger('silent');
  await admin.query(`create database ${templates.empty}`);
  const empty = new Database({ url: databaseUrl(url, templates.empty), poolMax: 1, logger });
  await migrateControl(empty, logger).finally(() => empty.close());
  await admin.query(`create database ${templates.tenant} template ${templates.empty}`);
  const tenant = new Database({ url: databaseUrl(url, templates.tenant), poolMax: 2, logger });
  await provisionForTest(tenant, defaultSlug).finally(() => tenant.close());
}

async function compileHeartbeat(outfile: string): Promise<void> {
  await build({
    entryPoints: [join(packageRoot(), 'server', 'worker', 'heartbeat', 'heartbeat-thread.ts')],
    outfile,
    bundle: true,
    packages: 'external',
    platform: 'node',
    format: 'esm',
    target: 'node20',
    sourcemap: 'inline',
  });
}
