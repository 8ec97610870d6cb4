import { spawn } from 'node:child_process';
import { EventEmitter, once } from 'node:events';
import { expect, test } from 'vitest';
import { Database, type Queryable } from '../../../../server/database/database.ts';
import { migrateControl, migrateTenant, schemasInStep } from '../../../../server/database/migrations/migrate.ts';
import { createLogger } from '../../../../server/kernel/logger.ts';
import { migrateAllTenants } from '../../../../server/tenants/migrate-all.ts';
import { useProgram } from '../../../support/daemon/build.ts';
import { eventually } from '../../../support/eventually.ts';
import { createEmptyDatabase, useDatabase } from '../../../support/postgres/database.ts';
import { writeMigrations } from '../../../support/postgres/migration-folder.ts';

const context = useDatabase();
const program = useProgram('test/support/postgres/run-migrations.ts');
const logger = createLogger('silent');

const first = `CREATE SCHEMA "tenant_template";
--> statement-breakpoint
CREATE TABLE "tenant_template"."things" ("id" integer PRIMARY KEY);`;
const second = 'ALTER TABLE "tenant_template"."things" ADD COLUMN "name" text;';

test('the control schema of the template is up to date', async () => {
  expect(await migrateControl(context.db)).toEqual([]);
});

test('a tenant gets every file once, in order', async () => {
  const directory = await writeMigrations({ '0000_first': first, '0001_second': second });
  expect(await schemasInStep(context.db, ['tenant_once'], { directory })).toEqual(new Set());
  expect(await migrateTenant(context.db, 'tenant_once', { directory })).toEqual(['0000_first', '0001_second']);
  expect(await migrateTenant(context.db, 'tenant_once', { directory })).toEqual([]);
  expect(await tables('tenant_once')).toEqual(['migrations', 'things']);
});

test('a tenant called template is a tenant like any other', async () => {
  expect(await migrateTenant(context.db, 'tenant_template')).not.toEqual([]);
  expect(await tables('tenant_template')).toContain('jobs');
});

test('ten processes at once apply each file once', async () => {
  const empty = await createEmptyDatabase();
  try {
    const children = Array.from({ length: 10 }, () => migrator(empty.url, 'tenant_crowd'));
    const applied = (await Promise.all(children.map((child) => child.output))).flatMap((output) => JSON.parse(output));
    expect(applied.sort()).toEqual([
      ...(await journal('leasehold', empty.db)).map((name) => `leasehold/${name}`),
      ...(await journal('tenant_crowd', empty.db)).map((name) => `tenant_crowd/${name}`),
    ]);
    expect(await schemasInStep(empty.db, ['tenant_crowd'])).toEqual(new Set(['tenant_crowd']));
  } finally {
    await empty.drop();
  }
});

test('a migrator killed half-way leaves nothing broken', async () => {
  const slow = { '0000_first': first, '0001_slow': `${second}\n--> statement-breakpoint\nSELECT pg_sleep(600);` };
  const directory = await writeMigrations({ '0000_first': first });
  await migrateTenant(context.db, 'tenant_killed', { directory });
  await writeMigrations(slow, directory);
  await killWhileItSleeps('tenant_killed', directory);
  expect(await journal('tenant_killed')).toEqual(['0000_first']);
  await writeMigrations({ '0000_first': first, '0001_slow': second }, directory);
  expect(await migrateTenant(context.db, 'tenant_killed', { directory })).toEqual(['0001_slow']);
});

test('a migrator killed while it creates a schema leaves none, and the next one creates it', async () => {
  const slow = { '0000_first': first, '0001_slow': `${second}\n--> statement-breakpoint\nSELECT pg_sleep(600);` };
  const directory = await writeMigrations(slow);
  await killWhileItSleeps('tenant_unborn', directory);
  expect(await tables('tenant_unborn')).toEqual([]);
  await writeMigrations({ '0000_first': first, '0001_slow': second }, directory);
  expect(await migrateTenant(context.db, 'tenant_unborn', { directory })).toEqual(['0000_first', '0001_slow']);
});

async function killWhileItSleeps(schemaName: string, directory: string): Promise<void> {
  const sleeping =
    "from pg_stat_activity where datname = current_database() and query like '%SELECT pg_sleep(600)%' and pid <> pg_backend_pid()";
  const child = migrator(context.url, schemaName, directory);
  await eventually(async () => expect(await context.db.query(`select 1 ${sleeping}`)).toHaveLength(1));
  child.kill();
  await child.ended;
  // The server notices a dead client only when it writes to it.
  await context.db.query(`select pg_terminate_backend(pid) ${sleeping}`);
  await eventually(async () => expect(await context.db.query(`select 1 ${sleeping}`)).toEqual([]));
}

test('a failing first file leaves no schema behind', async () => {
  const directory = await writeMigrations({ '0000_first': `${first}\n--> statement-breakpoint\nSELECT nonsense;` });
  await expect(migrateTenant(context.db, 'tenant_failed', { directory })).rejects.toThrow(/migration 0000_first/);
  expect(await tables('tenant_failed')).toEqual([]);
  await writeMigrations({ '0000_first': first }, directory);
  expect(await migrateTenant(context.db, 'tenant_failed', { directory })).toEqual(['0000_first']);
});

test('an edited file is refused by name', async () => {
  const directory = await writeMigrations({ '0000_first': first });
  await migrateTenant(context.db, 'tenant_edited', { directory });
  await writeMigrations({ '0000_first': first.replace('things', 'others') }, directory);
  await expect(migrateTenant(context.db, 'tenant_edited', { directory })).rejects.toThrow(/0000_first was edited/);
});

test('a new file that sorts before an applied one is refused by name', async () => {
  const directory = await writeMigrations({ '0000_first': first, '0002_third': second });
  await migrateTenant(context.db, 'tenant_order', { directory });
  await writeMigrations({ '0000_first': first, '0001_second': 'SELECT 1;', '0002_third': second }, directory);
  await expect(migrateTenant(context.db, 'tenant_order', { directory })).rejects.toThrow(/0001_second is out of order/);
});

test('an applied file that this version lacks is refused, unless a newer version wrote it', async () => {
  const directory = await writeMigrations({ '0000_first': first, '0001_second': second });
  await migrateTenant(context.db, 'tenant_versions', { directory });
  const older = await writeMigrations({ '0000_first': first });
  expect(await migrateTenant(context.db, 'tenant_versions', { directory: older })).toEqual([]);
  const other = await writeMigrations({ '0000_first': first, '0002_third': 'SELECT 1;' });
  await expect(migrateTenant(context.db, 'tenant_versions', { directory: other })).rejects.toThrow(/0001_second/);
});

test('a schema that is not ours is refused and left untouched', async () => {
  await context.db.query('create schema tenant_foreign');
  await context.db.query('create table tenant_foreign.precious (id integer)');
  await expect(migrateTenant(context.db, 'tenant_foreign')).rejects.toThrow(/tenant_foreign.*untouched/);
  await expect(migrateTenant(context.db, 'tenant_foreign')).rejects.toThrow(/tenant_foreign/);
  expect(await tables('tenant_foreign')).toEqual(['precious']);
});

test('an invalid identifier never reaches the database', async () => {
  await expect(migrateTenant(context.db, 'x"; drop schema leasehold; --')).rejects.toThrow(/not a schema name/);
});

test('a placeholder without quotes is refused', async () => {
  const directory = await writeMigrations({ '0000_first': 'CREATE TABLE tenant_template.things (id integer);' });
  await expect(migrateTenant(context.db, 'tenant_unquoted', { directory })).rejects.toThrow(/without quotes/);
});

test('many tenants migrate in parallel; one failure stops no other and a second run resumes', async () => {
  const directory = await writeMigrations({ '0000_first': first });
  const names = Array.from({ length: 20 }, (_, n) => `tenant_many_${n}`);
  await context.db.query('create schema tenant_many_7');
  const report = await migrateAllTenants(context.db, names, { concurrency: 4, logger, directory });
  expect(report.migrated).toHaveLength(19);
  expect(report.failed.map((failure) => failure.schemaName)).toEqual(['tenant_many_7']);
  await context.db.query('drop schema tenant_many_7');
  const again = await migrateAllTenants(context.db, names, { concurrency: 4, logger, directory });
  expect(again).toMatchObject({ migrated: ['tenant_many_7'], failed: [] });
  expect(again.unchanged).toHaveLength(19);
});

test('one statement finds all tenants that need no migration', async () => {
  const directory = await writeMigrations({ '0000_first': first });
  const names = Array.from({ length: 5 }, (_, n) => `tenant_in_step_${n}`);
  await migrateAllTenants(context.db, names, { concurrency: 4, logger, directory });
  const sent: string[] = [];
  const counted: Queryable = {
    query: (text, values) => {
      sent.push(text);
      return context.db.query(text, values);
    },
  };
  const inStep = (schemaNames: string[]) => schemasInStep(counted, schemaNames, { directory });
  expect(await inStep(names)).toEqual(new Set(names));
  expect(sent).toHaveLength(1);
  await writeMigrations({ '0000_first': first, '0001_second': second }, directory);
  await migrateTenant(context.db, 'tenant_in_step_3', { directory });
  expect(await inStep(names)).toEqual(new Set(['tenant_in_step_3']));
  await context.db.query(`update tenant_in_step_3.migrations set hash = 'x'`);
  expect(await inStep(names)).toEqual(new Set());
  // Nothing is known of any while one of them is not made yet; each is then asked by itself.
  expect(await inStep([...names, 'tenant_not_there'])).toEqual(new Set());
  const report = await migrateAllTenants(context.db, names, { concurrency: 4, logger, directory });
  expect(report.migrated).toHaveLength(4);
  expect(report.failed.map((failure) => failure.schemaName)).toEqual(['tenant_in_step_3']);
});

test('a migration that meets a locked table retries instead of blocking other statements', async () => {
  const directory = await writeMigrations({ '0000_first': first });
  await migrateTenant(context.db, 'tenant_locked', { directory });
  await writeMigrations({ '0000_first': first, '0001_second': second }, directory);
  const holder = new Database({ url: context.url, poolMax: 1, logger });
  // It holds its lock until the migration waits for it, on a busy machine too.
  const longTimeouts = { idleTimeoutMs: 600_000, timeoutMs: 600_000 };
  const steps = new EventEmitter();
  const locked = once(steps, 'locked');
  const released = once(steps, 'released');
  const holding = holder.transaction(async (tx) => {
    await tx.query('lock table tenant_locked.things');
    steps.emit('locked');
    await released;
  }, longTimeouts);
  await locked;
  const migrated = migrateTenant(context.db, 'tenant_locked', { directory });
  await eventually(async () => {
    const waiting = `select 1 from pg_locks where not granted and relation = 'tenant_locked.things'::regclass`;
    expect(await context.db.query(waiting)).not.toEqual([]);
  });
  steps.emit('released');
  await holding;
  await holder.close();
  expect(await migrated).toEqual(['0001_second']);
});

async function tables(schemaName: string): Promise<string[]> {
  const rows = await context.db.query<{ tablename: string }>(
    'select tablename from pg_tables where schemaname = $1 order by tablename',
    [schemaName],
  );
  return rows.map((row) => row.tablename);
}

async function journal(schemaName: string, db: Database = context.db): Promise<string[]> {
  const rows = await db.query<{ name: string }>(`select name from "${schemaName}".migrations order by name`);
  return rows.map((row) => row.name);
}

/** Another process that migrates the control schema and one tenant, and prints what it applied. */
function migrator(url: string, schemaName: string, directory = '') {
  const child = spawn(process.execPath, [program.path, url, schemaName, directory], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  let text = '';
  child.stdout.on('data', (chunk: Buffer) => {
    text += chunk.toString();
  });
  const ended = once(child, 'close');
  return { kill: () => child.kill('SIGKILL'), ended, output: ended.then(() => text) };
}
