// docs/deployment/roles.sql: a daemon whose role may only read and write rows runs jobs, and creates nothing.
import { randomBytes } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import { Database } from '../../../server/database/database.ts';
import { quoteSchema } from '../../../server/database/identifiers.ts';
import { migrateControl } from '../../../server/database/migrations/migrate.ts';
import { packageRoot } from '../../../server/kernel/environment.ts';
import { createLogger } from '../../../server/kernel/logger.ts';
import { createTenant } from '../../../server/tenants/create-tenant.ts';
import { fastSettings, startDaemon } from '../../support/daemon/daemon.ts';
import { eventually } from '../../support/eventually.ts';
import { citusCluster } from '../../support/postgres/citus.ts';
import { createEmptyDatabase, directUrl } from '../../support/postgres/database.ts';

// In a cluster a daemon must have the role that owns the tables: docs/scaling.md.
test.skipIf(citusCluster())('a daemon with the rights of roles.sql runs jobs, and cannot create a tenant', async () => {
  const context = await createEmptyDatabase();
  // Roles belong to the whole server: each run has names of its own.
  const suffix = `_${randomBytes(4).toString('hex')}`;
  const urlOf = (role: string) => {
    const url = new URL(directUrl(context));
    url.username = `leasehold_${role}${suffix}`;
    url.password = `${role}-password`;
    return url.href;
  };
  onTestFinished(async () => {
    const made = await context.db.query<{ role: string }>(
      `select m.roleid::regrole::text as role from pg_auth_members as m where m.grantor = 'leasehold_migrator${suffix}'::regrole`,
    );
    for (const role of new Set(made.map((each) => each.role))) {
      await context.db.query(`drop owned by ${role}`);
      await context.db.query(`drop role ${role}`);
    }
    for (const role of ['migrator', 'daemon'].map((name) => `leasehold_${name}${suffix}`)) {
      await context.db.query(`drop owned by ${role} cascade`);
      await context.db.query(`drop role ${role}`);
    }
    await context.drop();
  });
  for (const statement of rolesScript(suffix, new URL(context.url).pathname.slice(1)))
    await context.db.query(statement);

  const logger = createLogger('silent');
  const migrator = new Database({ url: urlOf('migrator'), poolMax: 2, logger, tenantRoles: true });
  await migrateControl(migrator);
  await createTenant(migrator, { slug: 'acme' });
  await migrator.close();

  const daemon = await startDaemon({ db: context.db, url: urlOf('daemon') }, { env: { TENANT_ROLES: 'true' } });
  const call = async (key: string, method: string, path: string, body?: object) => {
    const headers = { authorization: `Bearer ${key}`, 'content-type': 'application/json' };
    const response = await fetch(`${daemon.url}${path}`, {
      method,
      headers,
      ...(body && { body: JSON.stringify(body) }),
    });
    return { status: response.status, body: (await response.json()) as { id: string; key: { key: string } } };
  };
  const admin = fastSettings.ADMIN_API_KEY as string;
  const { body: made } = await call(admin, 'POST', '/api/admin/tenants/acme/keys', {
    name: 'app',
    scopes: ['read', 'enqueue'],
  });
  const { body: job } = await call(made.key.key, 'POST', '/api/targets/machine-1/jobs', {
    type: 'demo.echo',
    payload: { a: 1 },
  });
  await eventually(async () => {
    expect(await call(made.key.key, 'GET', `/api/jobs/${job.id}`)).toMatchObject({ body: { status: 'SUCCESS' } });
  });
  // Readiness needs no other rights, also after writes have failed.
  const readiness = async () => (await fetch(`${daemon.url}/readyz`)).status;
  const full = `begin raise exception 'could not extend file' using errcode = '53100'; end`;
  await context.db.query(`create function disk_full() returns trigger language plpgsql as $$ ${full} $$`);
  await context.db.query(
    'create trigger disk_full before insert on leasehold.daemons for each row execute function disk_full()',
  );
  await eventually(async () => expect(await readiness()).toBe(503));
  await context.db.query('drop function disk_full cascade');
  await eventually(async () => expect(await readiness()).toBe(200));
  // The role that the migrator created for the tenant.
  const schema = quoteSchema('tenant_acme');
  expect(daemon.db.tenantRoles?.of(schema)).toMatch(/^"lh_acme_/);
  await expect(
    daemon.db.forTenant(schema).query(`select "leasehold".tenants.id from ${schema}.jobs, "leasehold".tenants`),
  ).rejects.toMatchObject({ code: '42501' });
  expect(await call(admin, 'POST', '/api/admin/tenants', { slug: 'hooli' })).toMatchObject({
    status: 500,
    body: { code: 'DATABASE_RIGHTS_MISSING', detail: expect.stringContaining('leasehold_migrator') },
  });
});

/** The statements of the script, with psql's variables filled in. */
function rolesScript(suffix: string, database: string): string[] {
  return readFileSync(join(packageRoot(), 'docs/deployment/roles.sql'), 'utf8')
    .replace(/^--.*$/gm, '')
    .replace(/^select .*\\gset$/m, '')
    .replace(/leasehold_(migrator|daemon)\b/g, `leasehold_$1${suffix}`)
    .replace(/:'(\w+)_password'/g, "'$1-password'")
    .replaceAll(':"database"', `"${database}"`)
    .split(';')
    .map((statement) => statement.trim())
    .filter((statement) => statement !== '');
}
