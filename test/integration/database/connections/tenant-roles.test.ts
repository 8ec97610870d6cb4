// A role in the database for each tenant: Postgres refuses a statement of one tenant that names another's schema.
import { randomBytes, randomUUID } from 'node:crypto';
import { beforeAll, describe, expect, onTestFinished, test } from 'vitest';
import { Database } from '../../../../server/database/database.ts';
import { quoteSchema, type Schema } from '../../../../server/database/identifiers.ts';
import { createLogger } from '../../../../server/kernel/logger.ts';
import { scopes } from '../../../../server/tenants/api-keys/key.ts';
import { createApiKey } from '../../../../server/tenants/api-keys/key-store.ts';
import { createTenant } from '../../../../server/tenants/create-tenant.ts';
import { deleteTenant, requestTenantDeletion } from '../../../../server/tenants/delete-tenant.ts';
import { startDaemon } from '../../../support/daemon/daemon.ts';
import { eventually } from '../../../support/eventually.ts';
import { fillPath, operationsOf, readDocument } from '../../../support/http/operations.ts';
import { addJobs, reread } from '../../../support/jobs.ts';
import { citusCluster } from '../../../support/postgres/citus.ts';
import { addTenant, useTenant } from '../../../support/postgres/database.ts';
import { startProxy } from '../../../support/postgres/proxies/proxy.ts';

// Behind a pooler a role lasts for one transaction, so that each statement switches to it.
const noSessions = process.env.TEST_POOLER_URL !== undefined;
// Roles cannot log in to the nodes, so the tenants of a cluster have none.
const isCluster = citusCluster() !== undefined;
const context = useTenant();
const refused = expect.objectContaining({ code: '42501' });
let other: Schema;
beforeAll(async () => {
  other = (await addTenant(context.db, 'other')).schema;
});

/** A pool of one connection, so that tenants have to share it. */
function open(options: { url?: string; poolMax?: number } = {}): Database {
  const logger = createLogger('silent');
  const db = new Database({ url: context.url, poolMax: 1, logger, tenantRoles: true, ...options });
  onTestFinished(() => db.close());
  return db;
}

const countJobs = (db: Pick<Database, 'query'>, schema: Schema) => db.query(`select count(*) from ${schema}.jobs`);

describe.skipIf(isCluster)('a statement for one tenant', () => {
  test('is refused if it names another tenant, alone and in a transaction', async () => {
    const db = open();
    const ours = db.forTenant(context.schema);
    await expect(countJobs(ours, other)).rejects.toEqual(refused);
    await expect(ours.query(`delete from ${other}.jobs`)).rejects.toEqual(refused);
    await expect(ours.transaction((tx) => countJobs(tx, other))).rejects.toEqual(refused);
    await expect(ours.pipelinedTransaction((tx) => countJobs(tx, other))).rejects.toEqual(refused);
    // In one statement with its own: a join, or a subquery that was built with the wrong name.
    const mixed = `select from ${context.schema}.jobs where id in (select id from ${other}.jobs)`;
    await expect(ours.query(mixed)).rejects.toEqual(refused);
    // It may neither change tables nor read keys.
    await expect(ours.query(`drop table ${context.schema}.jobs`)).rejects.toEqual(refused);
    await expect(
      ours.query(`select (select hash from leasehold.api_keys limit 1) from ${context.schema}.jobs`),
    ).rejects.toEqual(refused);
  });

  test('runs if it names its own schema, whatever ran on the connection before', async () => {
    const db = open();
    const role = async (of: Pick<Database, 'query'>, schema: Schema) =>
      (await of.query<{ role: string }>(`select current_user as role from ${schema}.migrations limit 1`))[0]?.role;
    const own = await role(db, context.schema);
    const first = await role(db.forTenant(context.schema), context.schema);
    const second = await role(db.forTenant(other), other);
    expect(new Set([own, first, second]).size).toBe(3);
    expect(await role(db, other)).toBe(own);
    // A transaction that fails leaves the connection with a known role.
    await expect(db.forTenant(context.schema).transaction((tx) => countJobs(tx, other))).rejects.toEqual(refused);
    expect(await role(db.forTenant(other), other)).toBe(second);
    // Tables of all tenants are read with the rights of the connection, also within a transaction.
    await db.forTenant(context.schema).transaction(async (tx) => {
      expect(await role(tx, context.schema)).toBe(first);
      await tx.query(`select from "leasehold".tenants`);
      expect(await role(tx, context.schema)).toBe(first);
    });
    expect(await role(db, context.schema)).toBe(own);
  });

  test.skipIf(noSessions)('costs no additional statement while the tenant stays the same', async () => {
    const db = open();
    const ours = db.forTenant(context.schema);
    for (const schema of [other, context.schema]) await countJobs(db.forTenant(schema), schema);
    const switches = countSwitches(db);
    for (let n = 0; n < 5; n++) await countJobs(ours, context.schema);
    await ours.transaction((tx) => countJobs(tx, context.schema));
    expect(switches()).toBe(0);
    await countJobs(db.forTenant(other), other);
    expect(switches()).toBe(1);
  });
});

test.skipIf(isCluster)('behind a pooler the role lasts for one transaction', async () => {
  const db = open({ url: (await startProxy(context.url, { asPooler: true })).url });
  const ours = db.forTenant(context.schema);
  const sessionRole = async () => (await db.query<{ role: string }>('select current_user as role'))[0]?.role;
  const own = await sessionRole();
  await expect(countJobs(ours, context.schema)).resolves.toHaveLength(1);
  expect(await sessionRole()).toBe(own);
  await expect(countJobs(ours, other)).rejects.toEqual(refused);
  expect(await sessionRole()).toBe(own);
  await ours
    .transaction(async (tx) => {
      await countJobs(tx, context.schema);
      await tx.query('select from "leasehold".tenants');
      await expect(countJobs(tx, other)).rejects.toEqual(refused);
    })
    .catch(() => {});
  await expect(ours.pipelinedTransaction((tx) => countJobs(tx, other))).rejects.toEqual(refused);
  expect(await sessionRole()).toBe(own);
});

test.skipIf(isCluster)('behind a pooler a single statement is one request, with its role and limits', async () => {
  const db = open({ url: (await startProxy(context.url, { asPooler: true })).url });
  const ours = db.forTenant(context.schema);
  await countJobs(ours, context.schema);
  const requests = countRequests(db, () => true);
  const [row] = await ours.query<{ role: string; limit: string }>(
    `select current_user as role, current_setting('lock_timeout') as limit from ${context.schema}.log_epochs`,
  );
  expect(row).toEqual({ role: db.tenantRoles?.of(context.schema)?.replaceAll('"', ''), limit: '5s' });
  expect(requests()).toBe(1);
});

/** Statements that switch the role, on the only connection of the pool. */
const countSwitches = (db: Database) =>
  countRequests(db, (given) => typeof given === 'string' && given.startsWith('set'));

function countRequests(db: Database, isCounted: (given: unknown) => boolean): () => number {
  let count = 0;
  const [client] = (db.pool as unknown as { _clients: { query(...given: unknown[]): unknown }[] })._clients;
  if (client === undefined) throw new Error('there is no connection');
  const query = client.query.bind(client);
  client.query = (...given) => {
    if (isCounted(given[0])) count += 1;
    return query(...given);
  };
  return () => count;
}

describe.skipIf(isCluster)('a role', () => {
  const roleOf = async (schema: Schema) => {
    const db = open();
    await db.tenantRoles?.prepare(schema);
    return db.tenantRoles?.of(schema)?.replaceAll('"', '') ?? '';
  };
  const exists = async (role: string) =>
    (await context.db.query('select from pg_roles where rolname = $1', [role])).length === 1;

  test('is created with its tenant, has the rights on what migrations add, and is dropped with it', async () => {
    const db = open({ poolMax: 2 });
    const slug = `r${randomBytes(4).toString('hex')}`;
    const { tenant } = await createTenant(db, { slug });
    const role = await roleOf(tenant.schema);
    expect(await exists(role)).toBe(true);
    await context.db.query(`create table ${tenant.schema}.later (id int)`);
    await expect(db.forTenant(tenant.schema).query(`select from ${tenant.schema}.later`)).resolves.toEqual([]);
    const { confirm } = await requestTenantDeletion(db, slug);
    await deleteTenant(db, slug, { confirm });
    expect(await exists(role)).toBe(false);
  });

  test('gets its rights again if it lost them, as in a restored backup', async () => {
    const role = await roleOf(other);
    await context.db.query(`revoke all on all tables in schema ${other} from "${role}"`);
    await context.db.query(`revoke all on schema ${other} from "${role}"`);
    await expect(countJobs(open().forTenant(other), other)).resolves.toHaveLength(1);
  });

  test.skipIf(noSessions)('is created again if it is dropped while in use', async () => {
    const slug = `d${randomBytes(4).toString('hex')}`;
    const { schema } = await addTenant(context.db, slug);
    const db = open();
    await countJobs(db.forTenant(schema), schema);
    const role = await roleOf(schema);
    await countJobs(db, schema);
    await context.db.query(`drop owned by "${role}"`);
    await context.db.query(`drop role "${role}"`);
    // The statement that meets this runs with the rights of the connection; the next one has the role again.
    await countJobs(db.forTenant(schema), schema);
    await countJobs(db.forTenant(schema), schema);
    expect(await exists(role)).toBe(true);
  });

  // A pooler logs in with the user of its configuration.
  test.skipIf(noSessions)('is optional: without the right to create it, statements run as before', async () => {
    const user = `plain_${randomBytes(4).toString('hex')}`;
    await context.db.query(`create role ${user} login password 'x'`);
    onTestFinished(async () => {
      await context.db.query(`drop owned by ${user}`);
      await context.db.query(`drop role ${user}`);
    });
    const slug = `p${randomBytes(4).toString('hex')}`;
    const { schema } = await addTenant(context.db, slug);
    await context.db.query(`grant usage on schema ${schema} to ${user}`);
    await context.db.query(`grant select, insert, update, delete on all tables in schema ${schema} to ${user}`);
    const url = new URL(context.url);
    url.username = user;
    url.password = 'x';
    const db = open({ url: url.href });
    await expect(countJobs(db.forTenant(schema), schema)).resolves.toHaveLength(1);
    expect(db.tenantRoles?.of(schema)).toBeUndefined();
    // Whoever may create it makes it usable for all who already read and write the tenant's rows.
    await roleOf(schema);
    const again = open({ url: url.href });
    await expect(countJobs(again.forTenant(schema), schema)).resolves.toHaveLength(1);
    expect(again.tenantRoles?.of(schema)).toBeDefined();
    await expect(countJobs(again.forTenant(schema), other)).rejects.toEqual(refused);
  });
});

test.skipIf(isCluster)('a daemon works for its tenants with their roles: jobs, lanes, renewals', async () => {
  const daemon = await startDaemon(context, { env: { TENANT_ROLES: 'true' } });
  const given = { type: 'demo.sleep', payload: { seconds: 0.5 }, targetId: 'machine-1' };
  const jobs = await addJobs(context, [given, { ...given }, { type: 'demo.echo' }]);
  await eventually(async () => {
    for (const job of jobs) expect((await reread(context, job)).status).toBe('SUCCESS');
  });
  expect(daemon.db.tenantRoles?.of(context.schema)).toMatch(/^"lh_acme_[0-9a-f]{10}"$/);
});

test.skipIf(isCluster)('no route sends a statement on the tables of a tenant without its role', async () => {
  const daemon = await startDaemon(context, { env: { TENANT_ROLES: 'true' } });
  const { text: key } = await createApiKey(context.db, { tenantId: context.tenant.id, name: 'all', scopes });
  const { tenantRoles } = daemon.db;
  if (tenantRoles === undefined) throw new Error('the daemon has no roles');
  const without = new Set<string>();
  const roleFor = tenantRoles.roleFor.bind(tenantRoles);
  tenantRoles.roleFor = (tenant, text) => {
    // The shared poll reads the probes of many tenants in one statement, each as a row with its position.
    const isOfTenant = text?.includes(`${context.schema}.`) && !/^\s*select \d+::int as position/.test(text);
    if (tenant === undefined && isOfTenant) without.add(text?.trim().slice(0, 200) ?? '');
    return roleFor(tenant, text);
  };
  const operations = operationsOf(await readDocument(daemon.url)).filter(({ access }) => Array.isArray(access));
  expect(operations.length).toBeGreaterThan(80);
  for (const { method, path, body } of operations) {
    const headers = { authorization: `Bearer ${key}`, ...(body && { 'content-type': 'application/json' }) };
    const response = await fetch(`${daemon.url}${fillPath(path, () => randomUUID())}`, {
      method,
      headers,
      ...(body && { body: JSON.stringify(body.example) }),
      signal: AbortSignal.timeout(60_000),
    });
    await response.body?.cancel();
    expect(response.status).toBeLessThan(500);
  }
  expect([...without]).toEqual([]);
});

test('names of roles stay within 63 bytes and differ between databases', async () => {
  const { tenantRoleName } = await import('../../../../server/database/connections/tenant-roles.ts');
  const long = quoteSchema(`tenant_${'x'.repeat(48)}`);
  expect(tenantRoleName('a', long).length).toBeLessThanOrEqual(63);
  expect(tenantRoleName('a', long)).not.toBe(tenantRoleName('b', long));
});
