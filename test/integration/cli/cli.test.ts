import { describe, expect, it } from 'vitest';
import { runCli } from '../../../server/cli/program.ts';
import { migrateControl } from '../../../server/database/migrations/migrate.ts';
import { createLogger } from '../../../server/kernel/logger.ts';
import { KeyVerifier } from '../../../server/tenants/api-keys/verifier.ts';
import { getTenant } from '../../../server/tenants/tenant-store.ts';
import { startDaemon } from '../../support/daemon/daemon.ts';
import { addJob, claim, finish, reread } from '../../support/jobs.ts';
import { createEmptyDatabase, type DatabaseContext, useDatabase } from '../../support/postgres/database.ts';

const context = useDatabase();

async function cli(line: string | string[], env: Record<string, string> = {}) {
  let out = '';
  let err = '';
  const code = await runCli(typeof line === 'string' ? line.split(' ') : line, {
    env: { DATABASE_URL: context.url, ...env },
    out: (text) => void (out += text),
    err: (text) => void (err += text),
  });
  return { code, out, err, json: () => JSON.parse(out) };
}

const verify = (text: string) => new KeyVerifier(context.db, { adminApiKey: '' }, createLogger('silent')).verify(text);

describe('leasehold tenants', () => {
  it('creates, shows, configures, suspends, activates and deletes', async () => {
    const made = await cli('tenants create cli_one --set concurrency=5 --json');
    expect(made.code).toBe(0);
    expect(made.json().tenant).toMatchObject({ slug: 'cli_one', status: 'ACTIVE', settings: { concurrency: 5 } });
    expect(await verify(made.json().key.key)).toMatchObject({ tenantId: made.json().tenant.id });
    expect((await cli('tenants list')).out).toMatch(/cli_one +ACTIVE/);
    const set =
      'tenants settings cli_one --set retention.event_days=30 --set on_drain=requeue --unset concurrency --json';
    expect((await cli(set)).json()).toEqual({ retention: { event_days: 30 }, on_drain: 'requeue' });
    expect((await cli('--json tenants suspend cli_one')).json().status).toBe('SUSPENDED');
    expect((await cli('tenants activate cli_one')).out).toContain('ACTIVE');
    const { confirm } = (await cli('tenants delete cli_one --json')).json();
    expect((await cli('tenants delete cli_one --confirm wrong')).code).toBe(1);
    expect((await cli(`tenants delete cli_one --confirm ${confirm}`)).out).toContain('deleted cli_one');
    expect((await cli('tenants show cli_one')).code).toBe(1);
  });

  it('reports the problem, and exits with a code for the kind of error', async () => {
    await cli('tenants create taken');
    expect(await cli('tenants create taken')).toMatchObject({
      code: 1,
      err: 'error: The tenant taken exists already.\n',
    });
    expect(await cli('tenants create Bad-Slug')).toMatchObject({ code: 2 });
    expect((await cli('tenants create x --set concurency=1')).err).toContain(
      'settings.concurency: is not a known field',
    );
    expect((await cli('tenants create x --set nonsense')).code).toBe(2);
    expect((await cli('tenants settings taken --merge [1]')).code).toBe(2);
    expect((await cli('tenants settings taken --set __proto__.x=1')).code).toBe(2);
    expect((await cli('tenants show nobody --json')).err).toBe(
      '{"code":"NOT_FOUND","detail":"There is no tenant \\"nobody\\"."}\n',
    );
    expect((await cli('tenants frobnicate')).code).toBe(2);
    expect((await cli('--help')).code).toBe(0);
  });
});

describe('leasehold keys', () => {
  it('creates, lists, rotates and revokes', async () => {
    await cli('tenants create keyed');
    const made = (
      await cli(['keys', 'create', '--tenant', 'keyed', '--name', 'ci', '--scope', 'read', 'enqueue', '--json'])
    ).json();
    expect(made.scopes).toEqual(['read', 'enqueue']);
    expect((await cli('keys list --tenant keyed')).out).toContain(made.id);
    const rotated = (await cli(`keys rotate ${made.id} --tenant keyed --overlap 60 --json`)).json();
    expect(rotated).toMatchObject({ name: 'ci', scopes: ['read', 'enqueue'] });
    expect(await verify(made.key)).toBeDefined();
    expect((await cli(`keys revoke ${rotated.id} --tenant keyed`)).code).toBe(0);
    expect(await verify(rotated.key)).toBeUndefined();
  });

  it('creates operator keys, and asks for the owner of a key if it is missing', async () => {
    const made = (await cli('keys create --operator --name ops --json')).json();
    expect(await verify(made.key)).toMatchObject({ tenantId: null, scopes: ['admin'] });
    expect((await cli('keys create --name ops')).code).toBe(2);
    expect((await cli('keys create --tenant a --operator --name ops')).code).toBe(2);
    expect((await cli('keys create --operator')).code).toBe(2);
    expect((await cli('keys create --operator --name x --scope root')).err).toContain('scope[0]');
  });
});

describe('leasehold migrate', () => {
  it('prepares an empty database; before that the other commands say what to do', async () => {
    const { url, drop } = await createEmptyDatabase();
    try {
      const early = await cli('tenants list', { DATABASE_URL: url });
      expect(early).toMatchObject({
        code: 1,
        err: 'error: the database has not been migrated; run `leasehold migrate` first\n',
      });
      expect((await cli('migrate', { DATABASE_URL: url })).out).toContain('control schema: 0000_');
      expect((await cli('tenants create one', { DATABASE_URL: url })).code).toBe(0);
      expect((await cli('migrate', { DATABASE_URL: url })).out).toBe(
        'control schema: up to date\ntenants: 0 migrated, 1 up to date, 0 failed\n',
      );
    } finally {
      await drop();
    }
  });
});

describe('leasehold config', () => {
  it('prints settings without secrets', async () => {
    const env = {
      DATABASE_URL: 'postgres://u:hush@db.example/x',
      ADMIN_API_KEY: 'hush-b5f1c2d3e4a596877869504132435465',
      PORT: '9999',
    };
    const { code, out } = await cli('config', env);
    expect(code).toBe(0);
    expect(out).toMatch(/PORT +9999 +8080/);
    expect(out).not.toMatch(/hush|kkkk/);
  });

  it.each(['u:hush@h1:5432,h2:5432/x', 'u:hu@sh@h1/x', 'u@h1/x?password=hush&a=b'])(
    'hides a password in %s',
    async (at) => {
      const { out } = await cli('config', { DATABASE_URL: `postgres://${at}` });
      expect(out).toMatch(/DATABASE_URL +postgres:\/\/u.*\*\*\*/);
      expect(out).not.toMatch(/hush|hu@sh/);
    },
  );

  it('names an invalid setting', async () => {
    expect(await cli('config', { PORT: 'http' })).toMatchObject({
      code: 2,
      err: expect.stringContaining('PORT="http" is not allowed'),
    });
  });
});

it('reports that the database cannot be reached, without its password', async () => {
  const { code, err } = await cli('tenants list', { DATABASE_URL: 'postgres://u:hush@127.0.0.1:9/x' });
  expect(code).toBe(3);
  expect(err).toMatch(/^error: the database cannot be reached: .*; check DATABASE_URL\n$/);
  expect(err).not.toContain('hush');
});

describe('leasehold migrate and the start of a daemon', () => {
  /** One tenant of each status, as a creation or deletion that died leaves them: without a schema. */
  async function inEveryStatus(run: (database: DatabaseContext) => Promise<unknown>): Promise<string[]> {
    const database = await createEmptyDatabase();
    try {
      await migrateControl(database.db);
      for (const status of ['ACTIVE', 'SUSPENDED', 'PROVISIONING', 'DELETING']) {
        await database.db.query(
          `insert into leasehold.tenants (id, slug, schema_name, status, settings, webhook_secrets)
           values (gen_random_uuid(), lower($1), 'tenant_' || lower($1), $1, '{}', '{}')`,
          [status],
        );
      }
      await run(database);
      const schemas = await database.db.query<{ name: string }>(
        "select nspname as name from pg_namespace where nspname like 'tenant%' order by 1",
      );
      return schemas.map(({ name }) => name);
    } finally {
      await database.drop();
    }
  }

  it('migrate the same tenants', async () => {
    const byCommand = await inEveryStatus(({ url }) => cli('migrate', { DATABASE_URL: url }));
    const byDaemon = await inEveryStatus(async (database) => (await startDaemon(database)).stop(0));
    expect(byCommand).toEqual(['tenant_active', 'tenant_provisioning', 'tenant_suspended']);
    expect(byDaemon).toEqual(byCommand);
  });
});

describe('leasehold canary', () => {
  it('lets one job of a held target run, or begins an operation with a canary', async () => {
    await cli('tenants create cli_canary');
    const schema = (await getTenant(context.db, 'cli_canary')).schema;
    const where = { db: context.db, schema };
    const job = await addJob(where, { targetId: 'machine-7' });
    expect(await cli('canary target cli_canary machine-7')).toMatchObject({
      code: 1,
      err: 'error: Target machine-7 is neither held nor paused: its next job runs anyway.\n',
    });
    for (const running of (await claim(where)).jobs) {
      await finish(where, running, { kind: 'fail', error: { code: 'X', message: 'x' } });
    }
    const begun = await cli('canary jobs cli_canary --type demo.echo --author ann --json');
    expect(begun.json()).toMatchObject({ matched: 1, operation_id: expect.any(String) });
    const started = await cli('canary target cli_canary machine-7 --reason fixed --json');
    expect(started.json()).toEqual({ target_id: 'machine-7', canary_job_id: job.id });
    expect((await reread(where, job)).status).toBe('QUEUED');
    expect((await cli('canary target nobody machine-7')).code).toBe(1);
  });
});
