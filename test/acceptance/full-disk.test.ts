// The disk of the database is really full: the daemon is not ready, answers 503 and continues when there is space again.
import { execFileSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import { Database } from '../../server/database/database.ts';
import { quoteSchema } from '../../server/database/identifiers.ts';
import { migrateControl } from '../../server/database/migrations/migrate.ts';
import { createLogger } from '../../server/kernel/logger.ts';
import { useEffects } from '../support/daemon/effects.ts';
import { startProcess } from '../support/daemon/process.ts';
import { eventually } from '../support/eventually.ts';
import { reread } from '../support/jobs.ts';
import { checkInvariants } from '../support/model/invariants.ts';
import type { TenantContext } from '../support/postgres/database.ts';
import { type PrivateServer, startPrivateServer } from '../support/postgres/private-server.ts';
import { defaultSlug, provisionForTest } from '../support/provision.ts';

const megabytes = 64;

/** A file system of its own; undefined where this process may not mount one. */
function mountDisk(): string | undefined {
  const directory = mkdtempSync('/tmp/leasehold-disk-');
  const remove = () => rmSync(directory, { recursive: true, force: true });
  try {
    execFileSync('mount', ['-t', 'tmpfs', '-o', `size=${megabytes}m`, 'tmpfs', directory], { stdio: 'ignore' });
  } catch {
    remove();
    return undefined;
  }
  onTestFinished(() => {
    execFileSync('umount', ['--lazy', directory]);
    remove();
  });
  return directory;
}

/** A database whose tables are on `disk`. The log of the server is elsewhere, as on many servers. */
async function createDatabaseOn(disk: string, server: PrivateServer): Promise<TenantContext> {
  const tables = join(disk, 'tables');
  mkdirSync(tables);
  await server.place.runner.own(disk);
  await server.place.runner.own(tables);
  await server.db.query(`create tablespace small location '${tables}'`);
  await server.db.query('create database small tablespace small');
  const url = new URL(server.url);
  url.pathname = '/small';
  const db = new Database({ url: url.href, poolMax: 4, logger: createLogger('silent') });
  onTestFinished(() => db.close());
  await migrateControl(db, createLogger('silent'));
  const tenant = await provisionForTest(db, defaultSlug);
  return { db, url: url.href, tenant, schema: quoteSchema(tenant.schemaName) };
}

/** Uses up all space; returns a function that frees it. */
function fill(disk: string): () => void {
  const filler = join(disk, 'filler');
  for (const size of [1_048_576, 4_096]) {
    try {
      for (;;) writeFileSync(filler, Buffer.alloc(size), { flag: 'a' });
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'ENOSPC') throw error;
    }
  }
  return () => rmSync(filler);
}

interface Line {
  msg: string;
  sqlState?: string;
  err?: unknown;
}

test('a daemon is not ready while the disk of the database is full, answers 503, and continues afterwards', async (context) => {
  const server = await startPrivateServer();
  const disk = mountDisk();
  if (disk === undefined) return context.skip();
  const tenant = await createDatabaseOn(disk, server);
  const daemon = await startProcess(tenant, { env: (await useEffects()).env });
  const readiness = async () => {
    const response = await fetch(`${daemon.url}/readyz`);
    return { status: response.status, body: (await response.json()) as { checks: { database: { detail: string } } } };
  };
  const enqueue = () =>
    fetch(`${daemon.url}/api/jobs`, {
      method: 'POST',
      headers: { authorization: `Bearer ${daemon.key}`, 'content-type': 'application/json' },
      // Needs pages of its own.
      body: JSON.stringify({ type: 'work', payload: { text: randomBytes(50_000).toString('hex') } }),
    });
  const free = fill(disk);
  const from = daemon.output().length;
  // No client has written anything yet.
  await eventually(async () => {
    const { status, body } = await readiness();
    expect([status, body.checks.database.detail]).toEqual([503, 'the database has no space left']);
  });
  for (let n = 0; n < 10; n++) {
    const refused = await enqueue();
    expect([refused.status, refused.headers.get('retry-after')]).toEqual([503, '2']);
    expect(await refused.json()).toMatchObject({
      code: 'DATABASE_UNAVAILABLE',
      detail: expect.stringContaining('cannot write'),
    });
  }
  const lines = daemon.output().slice(from).trim().split('\n');
  const errors = lines.map((line) => JSON.parse(line) as Line).filter(({ msg }) => msg === 'database cannot write');
  // Another one after 30 seconds, on a busy machine.
  expect(errors[0]).toMatchObject({ sqlState: '53100' });
  expect(errors.length).toBeLessThan(5);
  expect(lines.filter((line) => line.includes('"stack"'))).toEqual([]);
  expect(daemon.child.exitCode).toBe(null);
  free();
  await eventually(async () => expect((await readiness()).status).toBe(200));
  const accepted = await enqueue();
  expect(accepted.status).toBe(201);
  const job = (await accepted.json()) as { id: string };
  await eventually(async () => expect((await reread(tenant, job)).status).toBe('SUCCESS'));
  expect(await tenant.db.query('select id from leasehold.daemons')).toEqual([{ id: daemon.name }]);
  await checkInvariants(tenant);
});
