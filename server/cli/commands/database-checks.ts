// The checks of `leasehold doctor`. Each check reads one thing and leaves nothing changed.
import { statfsSync } from 'node:fs';
import type pg from 'pg';
import { listDaemons } from '../../daemon-registry/live-daemons.ts';
import type { Database } from '../../database/database.ts';
import { controlSchema } from '../../database/identifiers.ts';
import { schemasInStep } from '../../database/migrations/migrate.ts';
import { migrationsDirectory, readMigrations } from '../../database/migrations/migration-files.ts';
import { clientOf, Servers } from '../../database/servers/servers.ts';
import { runQuery } from '../../database/sql.ts';
import { explainDatabaseError } from '../../database/sql-errors.ts';
import type { Config } from '../../kernel/config.ts';
import { errorMessage } from '../../kernel/errors.ts';
import { readAllTenants } from '../../tenants/tenant-store.ts';
import type { Session } from '../session.ts';

export interface Check {
  name: string;
  state: 'ok' | 'warning' | 'failed';
  found: string;
  /** The remedy, if there is a problem. */
  advice?: string;
}

const minVersion = 15;
const maxClockSeconds = 5;
const maxTransactionSeconds = 600;
const minFreeBytes = 1_073_741_824;
const notifyTimeoutMs = 3000;
// Connections besides the pool: heartbeats and LISTEN.
const connectionsBesidePool = 2;

export async function* checkDatabase(session: Session, config: Config): AsyncGenerator<Check> {
  let db: Database;
  try {
    db = await session.database();
    await db.query('select 1');
  } catch (error) {
    const found = explainDatabaseError(error) ?? errorMessage(error);
    yield { name: 'database', state: 'failed', found, advice: 'Check DATABASE_URL and that the server runs.' };
    return;
  }
  yield { name: 'database', state: 'ok', found: 'reached' };
  const checks = [
    () => checkServer(db),
    () => checkClock(db),
    () => checkMigrations(db),
    () => checkRights(db),
    () => checkTenantRoles(db),
    () => checkConnections(db, config),
    () => checkTransactions(db),
    () => checkListen(session, config),
    () => checkDisk(db, config),
    () => checkDaemons(db),
  ];
  for (const check of checks) {
    try {
      yield* await check();
    } catch (error) {
      yield { name: 'database', state: 'failed', found: explainDatabaseError(error) ?? errorMessage(error) };
    }
  }
}

async function checkServer(db: Database): Promise<Check[]> {
  const [row] = await db.query<{ version: string; number: number; standby: boolean; read_only: boolean }>(
    `select current_setting('server_version') as version, current_setting('server_version_num')::int as number,
            pg_is_in_recovery() as standby, current_setting('default_transaction_read_only') = 'on' as read_only`,
  );
  const { version = '', number = 0, standby = false, read_only = false } = row ?? {};
  const isOld = number < minVersion * 10_000;
  const isReadOnly = standby || read_only;
  return [
    isOld
      ? {
          name: 'version',
          state: 'failed',
          found: `Postgres ${version}`,
          advice: `Leasehold needs Postgres ${minVersion} or newer.`,
        }
      : { name: 'version', state: 'ok', found: `Postgres ${version}` },
    isReadOnly
      ? {
          name: 'writable',
          state: 'failed',
          found: standby ? 'the server is a standby' : 'default_transaction_read_only is on',
          advice: 'Name the primary in DATABASE_URL, or all servers: daemons choose the one that accepts writes.',
        }
      : { name: 'writable', state: 'ok', found: 'the server accepts writes' },
  ];
}

async function checkClock(db: Database): Promise<Check[]> {
  const before = Date.now();
  const [row] = await db.query<{ ms: number }>(`select extract(epoch from clock_timestamp())::float8 * 1000 as ms`);
  const differenceSeconds = Math.abs((row?.ms ?? 0) - (before + Date.now()) / 2) / 1000;
  const found = `differs from the database by ${differenceSeconds.toFixed(1)} s`;
  if (differenceSeconds <= maxClockSeconds) return [{ name: 'clock', state: 'ok', found }];
  const advice =
    'Leases use the time of the database, so jobs are safe; times in logs mislead. Synchronize the clocks (NTP).';
  return [{ name: 'clock', state: 'warning', found, advice }];
}

async function checkMigrations(db: Database): Promise<Check[]> {
  const run = 'Run `leasehold migrate`, or start a daemon of this version.';
  const [control] = await runQuery<{ exists: boolean }>(db, `select to_regnamespace(:schema) is not null as exists`, {
    schema: controlSchema,
  });
  if (!control?.exists) return [{ name: 'migrations', state: 'failed', found: 'the database is empty', advice: run }];
  const applied = await db.query<{ name: string }>(`select name from ${controlSchema}.migrations`);
  const files = await readMigrations(migrationsDirectory('control'));
  if (files.some((file) => !applied.some(({ name }) => name === file.name))) {
    return [{ name: 'migrations', state: 'failed', found: 'the control schema lacks migrations', advice: run }];
  }
  const tenants = (await readAllTenants(db)).filter(({ status }) => status !== 'DELETING');
  const names = tenants.map(({ schemaName }) => schemaName);
  const missing = names.length - (await schemasInStep(db, names)).size;
  const found = `control schema and ${names.length - missing} of ${names.length} tenants are of this version`;
  return [
    missing === 0
      ? { name: 'migrations', state: 'ok', found }
      : { name: 'migrations', state: 'failed', found, advice: run },
  ];
}

async function checkRights(db: Database): Promise<Check[]> {
  const [row] = await db.query<{ role: string; may_create: boolean }>(
    `select current_user as role, has_database_privilege(current_database(), 'create') as may_create`,
  );
  const denied = await runQuery<{ name: string }>(
    db,
    `select n.nspname as name from pg_namespace as n
      where (n.oid = to_regnamespace(:schema) or n.nspname like 'tenant\\_%')
        and (not has_schema_privilege(n.oid, 'usage')
          or exists (select 1 from pg_class as c where c.relnamespace = n.oid and c.relkind = 'r'
                        and not has_table_privilege(c.oid, 'select, insert, update, delete')))
      order by 1 limit 5`,
    { schema: controlSchema },
  );
  const checks: Check[] = [];
  if (denied.length > 0) {
    const found = `${row?.role} may not write to ${denied.map(({ name }) => name).join(', ')}`;
    checks.push({
      name: 'rights',
      state: 'failed',
      found,
      advice: 'Run daemons as the role that owns the schemas, or grant it their tables.',
    });
  }
  if (row?.may_create !== true) {
    const found = `${row?.role} may not create schemas`;
    checks.push({
      name: 'rights',
      state: 'warning',
      found,
      advice: 'Needed to create tenants: grant create on database … to the role.',
    });
  }
  return checks.length > 0
    ? checks
    : [{ name: 'rights', state: 'ok', found: `${row?.role} may create schemas and write to all of them` }];
}

async function checkTenantRoles(db: Database): Promise<Check[]> {
  const name = 'tenant roles';
  if (db.tenantRoles === undefined) return [{ name, state: 'ok', found: 'off by TENANT_ROLES' }];
  if (db.sharded) return [{ name, state: 'ok', found: 'not used on a Citus cluster' }];
  const tenants = (await readAllTenants(db)).filter(({ status }) => status !== 'DELETING');
  const states = await Promise.all(tenants.map(({ schema }) => db.tenantRoles?.isReady(schema)));
  const ready = states.filter((isReady) => isReady === true).length;
  const found = `${ready} of ${tenants.length} tenants have a role that this connection may use`;
  if (ready === tenants.length) return [{ name, state: 'ok', found }];
  const advice =
    'Statements of the others run with the rights of this connection. Run `leasehold migrate` as a role with CREATEROLE that owns the schemas.';
  return [{ name, state: 'warning', found, advice }];
}

async function checkConnections(db: Database, config: Config): Promise<Check[]> {
  const [row] = await db.query<{ max: number; used: number }>(
    `select current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int as max,
            (select count(*)::int from pg_stat_activity where backend_type = 'client backend') as used`,
  );
  const { max = 0, used = 0 } = row ?? {};
  const daemons = await listDaemons(db).catch(() => []);
  const alive = Math.max(1, daemons.filter(({ state }) => state !== 'lost').length);
  const needed = alive * (config.databasePoolMax + connectionsBesidePool);
  const found = `${used} of ${max} connections in use; ${alive} daemon${alive === 1 ? '' : 's'} may use ${needed}`;
  if (needed <= max && used < max * 0.9) return [{ name: 'connections', state: 'ok', found }];
  return [
    { name: 'connections', state: 'warning', found, advice: 'Lower DATABASE_POOL_MAX or raise max_connections.' },
  ];
}

async function checkTransactions(db: Database): Promise<Check[]> {
  const [row] = await db.query<{ seconds: number | null; pid: number | null; name: string | null }>(
    `select extract(epoch from clock_timestamp() - xact_start)::float8 as seconds, pid, application_name as name
       from pg_stat_activity where xact_start is not null and datname = current_database() and pid <> pg_backend_pid()
      order by xact_start limit 1`,
  );
  const seconds = row?.seconds ?? 0;
  if (seconds <= maxTransactionSeconds) return [{ name: 'transactions', state: 'ok', found: 'none is open for long' }];
  const found = `process ${row?.pid} (${row?.name}) has a transaction open for ${Math.round(seconds / 60)} minutes`;
  return [
    {
      name: 'transactions',
      state: 'warning',
      found,
      advice: 'It keeps vacuum from removing dead rows, and events from being read: end it.',
    },
  ];
}

/**
 * Opens a connection like that of daemons for wake-ups, and checks whether there is a pooler and whether notifications
 * arrive.
 */
async function checkListen(session: Session, config: Config): Promise<Check[]> {
  const url = config.listenDatabaseUrl === '' ? await session.databaseUrl() : config.listenDatabaseUrl;
  const servers = new Servers(url);
  const Client = clientOf(servers);
  const [client, sender] = [0, 1].map(() => {
    const one = new Client({ connectionString: servers.url, application_name: 'leasehold-doctor' });
    return one.on('error', () => {});
  }) as [pg.Client, pg.Client];
  const bypass = 'Set LISTEN_DATABASE_URL to an address of the server itself. Without it jobs wait for the next poll.';
  try {
    await client.connect();
    const { rows } = await client.query<{ pid: number }>('select pg_backend_pid() as pid');
    const direct = rows[0]?.pid === (client as unknown as { processID: number }).processID;
    const checks: Check[] = [
      { name: 'pooler', state: 'ok', found: direct ? 'none in between' : 'a pooler is in between' },
    ];
    checks.push(
      (await receivesNotification(client, sender))
        ? { name: 'LISTEN', state: 'ok', found: 'notifications arrive' }
        : { name: 'LISTEN', state: 'warning', found: 'a notification did not arrive', advice: bypass },
    );
    return checks;
  } catch (error) {
    return [{ name: 'LISTEN', state: 'warning', found: errorMessage(error), advice: bypass }];
  } finally {
    for (const one of [client, sender]) await one.end().catch(() => {});
  }
}

/** Sends from another connection: a pooler may run LISTEN and NOTIFY of one client in the same server process. */
async function receivesNotification(client: pg.Client, sender: pg.Client): Promise<boolean> {
  const received = new Promise<boolean>((resolve) => client.once('notification', () => resolve(true)));
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<boolean>((resolve) => {
    timer = setTimeout(() => resolve(false), notifyTimeoutMs);
  });
  await client.query('listen leasehold_doctor');
  await sender.connect();
  await sender.query('notify leasehold_doctor');
  const arrived = await Promise.race([received, late]);
  clearTimeout(timer);
  return arrived;
}

async function checkDisk(db: Database, config: Config): Promise<Check[]> {
  const [row] = await db.query<{ size: string }>(`select pg_size_pretty(pg_database_size(current_database())) as size`);
  const found = `the database has ${row?.size}`;
  if (config.databaseUrl !== '')
    return [{ name: 'disk', state: 'ok', found: `${found}; watch the free space of its server` }];
  const { bavail, bsize } = statfsSync(config.dataDir);
  const free = bavail * bsize;
  const all = `${found}, ${config.dataDir} has ${(free / 1_073_741_824).toFixed(1)} GB free`;
  if (free >= minFreeBytes) return [{ name: 'disk', state: 'ok', found: all }];
  return [
    {
      name: 'disk',
      state: 'warning',
      found: all,
      advice: 'A full disk stops all writes: free space, or shorten the retention.',
    },
  ];
}

async function checkDaemons(db: Database): Promise<Check[]> {
  const daemons = (await listDaemons(db)).filter(({ state }) => state !== 'lost');
  const versions = [...new Set(daemons.map(({ version }) => version))];
  if (daemons.length === 0) {
    return [
      {
        name: 'daemons',
        state: 'warning',
        found: 'none is alive',
        advice: 'Start one with `leaseholdd`: without it no job runs.',
      },
    ];
  }
  const found = `${daemons.length} alive, version ${versions.join(', ')}`;
  if (versions.length === 1) return [{ name: 'daemons', state: 'ok', found }];
  return [{ name: 'daemons', state: 'warning', found, advice: 'Fine during an upgrade; finish it.' }];
}
