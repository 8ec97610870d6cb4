// A separate database for every test file, cloned from the run's templates and dropped at the end.
// `const context = useTenant();` at the top of a file; its fields are there once the tests run.
import { randomBytes } from 'node:crypto';
import { afterAll, beforeAll, beforeEach, expect, inject } from 'vitest';
import type { TransactionOptions } from '../../../server/database/connections/tenant-session.ts';
import { Database } from '../../../server/database/database.ts';
import { quoteSchema, type Schema } from '../../../server/database/identifiers.ts';
import { migrateControl } from '../../../server/database/migrations/migrate.ts';
import { createLogger } from '../../../server/kernel/logger.ts';
import { deleteTenant, requestTenantDeletion } from '../../../server/tenants/delete-tenant.ts';
import type { Tenant } from '../../../server/tenants/tenant.ts';
import { getTenant, suspendTenant } from '../../../server/tenants/tenant-store.ts';
import { eventually } from '../eventually.ts';
import { databaseUrl, defaultSlug, provisionForTest } from '../provision.ts';
import { citusCluster, createOnAllNodes, dropOnAllNodes } from './citus.ts';

export interface DatabaseContext {
  db: Database;
  url: string;
}

export interface TenantContext extends DatabaseContext {
  tenant: Tenant;
  schema: Schema;
}

/** A database with the control schema and no tenant. */
export function useDatabase(): DatabaseContext {
  const context = {} as DatabaseContext;
  let drop: () => Promise<void> = async () => {};
  beforeAll(async () => {
    drop = await cloneInto(context, inject('templates').empty);
  });
  afterAll(() => drop());
  return context;
}

/** A database with one active tenant. */
export function useTenant(slug: string = defaultSlug): TenantContext {
  const context = {} as TenantContext;
  let drop: () => Promise<void> = async () => {};
  beforeAll(async () => {
    const templates = inject('templates');
    drop = await cloneInto(context, slug === defaultSlug ? templates.tenant : templates.empty);
    context.tenant =
      slug === defaultSlug ? await getTenant(context.db, slug) : await provisionForTest(context.db, slug);
    context.schema = quoteSchema(context.tenant.schemaName);
  });
  afterAll(() => drop());
  return context;
}

/**
 * A database in which every test has a tenant of its own: `tenant` and `schema` change from test to test.
 * The tenant is suspended after its test, so that daemons of later tests leave its jobs alone.
 */
export function useTenantPerTest(): TenantContext {
  const context = useDatabase() as TenantContext;
  beforeEach(async ({ onTestFinished }) => {
    Object.assign(context, await addTenant(context.db));
    const { slug } = context.tenant;
    // Registered before anything of the test, so it runs last, when the test's daemons have stopped.
    onTestFinished(async () => void (await suspendTenant(context.db, slug)));
  });
  return context;
}

/** The test's database past the pooler of `npm run test:pgbouncer`; without a pooler, as it is. */
export function directUrl({ url }: { url: string }): string {
  return process.env.TEST_POOLER_URL ? databaseUrl(inject('serverUrl'), new URL(url).pathname.slice(1)) : url;
}

/** Settings of an instance that must hear of jobs: LISTEN needs a session of its own. */
export function listenSettings(context: { url: string }): { listenDatabaseUrl?: string } {
  return process.env.TEST_POOLER_URL ? { listenDatabaseUrl: directUrl(context) } : {};
}

const testSession = 'leasehold-test';

/** For transactions of tests that stay open while the test waits, or that wait for each other, on a busy machine too. */
export const staysOpen: TransactionOptions = { idleTimeoutMs: 600_000, timeoutMs: 600_000, lockTimeoutMs: 600_000 };

/** Ends every connection to the test's database except the test's own, and waits until they are gone. */
export async function endOtherConnections(db: Database): Promise<void> {
  const others = `from pg_stat_activity where datname = current_database() and application_name <> '${testSession}'`;
  const ended = await db.query<{ pid: number }>(`select pid, pg_terminate_backend(pid) ${others}`);
  const pids = ended.map((each) => each.pid);
  await eventually(async () => expect(await db.query(`select ${others} and pid = any($1)`, [pids])).toEqual([]));
}

/** SQL: the sessions that wait for a lock. It names a table of the tenant, so in a cluster those of the tenant's node. */
export function lockWaiters(schema: Schema): string {
  return `select pid from pg_stat_activity
           where datname = current_database() and wait_event_type = 'Lock' and exists (select from ${schema}.log_epochs)`;
}

/** A further tenant in a database that a test already has. */
export async function addTenant(
  db: Database,
  slug = `t${randomBytes(6).toString('hex')}`,
): Promise<{ tenant: Tenant; schema: Schema }> {
  const tenant = await provisionForTest(db, slug);
  return { tenant, schema: quoteSchema(tenant.schemaName) };
}

export async function removeTenant(db: Database, slug: string): Promise<void> {
  const { confirm } = await requestTenantDeletion(db, slug);
  await deleteTenant(db, slug, { confirm, force: true });
}

/** A database without anything in it; call `drop` at the end. */
export async function createEmptyDatabase(): Promise<DatabaseContext & { drop(): Promise<void> }> {
  const context = {} as DatabaseContext;
  const drop = await cloneInto(context, 'template1');
  return { ...context, drop };
}

async function cloneInto(context: DatabaseContext, template: string): Promise<() => Promise<void>> {
  const serverUrl = inject('serverUrl');
  const logger = createLogger('silent');
  const name = `leasehold_test_${randomBytes(6).toString('hex')}`;
  const cluster = citusCluster();
  if (cluster) await createOnAllNodes(cluster, name);
  // The server of the tests does not sync: its checkpoints cost less than logging the copy.
  else await onServer(serverUrl, `create database ${name} template ${template} strategy = file_copy`);
  // A pooler that knows every database of the server.
  context.url = databaseUrl(process.env.TEST_POOLER_URL ?? serverUrl, name);
  context.db = new Database({ url: context.url, poolMax: 10, logger, applicationName: testSession });
  if (cluster) {
    const templates = inject('templates');
    if (template !== 'template1') await migrateControl(context.db);
    if (template === templates.tenant) await provisionForTest(context.db, defaultSlug);
    return async () => {
      await context.db.close();
      await dropOnAllNodes(cluster, name);
    };
  }
  // A pooler keeps its connections to the server when all of its clients are gone.
  if (process.env.TEST_POOLER_URL) {
    return async () => {
      await context.db.close();
      await onServer(serverUrl, `drop database if exists ${name} with (force)`);
    };
  }
  return async () => {
    // A test that failed inside a transaction keeps its client: the forced drop below ends that wait.
    const closed = context.db.close();
    try {
      // Sessions end a moment after their clients; those of a leaked pool or a running process stay.
      await eventually(() => onServer(serverUrl, `drop database ${name}`));
    } catch (error) {
      await onServer(serverUrl, `drop database if exists ${name} with (force)`);
      throw new Error('database sessions are still open at the end of the file', { cause: error });
    } finally {
      await Promise.race([closed, new Promise((resolve) => setTimeout(resolve, 5_000).unref())]);
    }
  };
}

async function onServer(serverUrl: string, statement: string): Promise<void> {
  const admin = new Database({ url: serverUrl, poolMax: 1, logger: createLogger('silent') });
  await admin.query(statement).finally(() => admin.close());
}
