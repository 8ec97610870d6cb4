// Two servers, one of them a standby: a daemon waits on a standby, follows the primary after a promotion with all its
// connections, and does not use a primary that was left behind.
import { expect, test } from 'vitest';
import { runCli } from '../../server/cli/program.ts';
import { Database } from '../../server/database/database.ts';
import { ServerMonitor } from '../../server/database/servers/availability.ts';
import { createLogger } from '../../server/kernel/logger.ts';
import { checkEffects, useEffects } from '../support/daemon/effects.ts';
import { launchProcess, startProcess } from '../support/daemon/process.ts';
import { eventually } from '../support/eventually.ts';
import { addJob, reread } from '../support/jobs.ts';
import { type PrivateServer, startPrivateServer } from '../support/postgres/private-server.ts';
import { type Standby, startStandby } from '../support/postgres/standby.ts';

const longTimeouts = { timeoutMs: 60_000, everyMs: 100 };

function bothOf(primary: PrivateServer, standby: Standby): string {
  return primary.url.replace(/@[^/]*/, `@127.0.0.1:${standby.port},127.0.0.1:${primary.port}`);
}

/** The same schema, read and written through another address. */
function through(context: PrivateServer, url: string): PrivateServer {
  return { ...context, url, db: new Database({ url, poolMax: 2, logger: createLogger('silent') }) };
}

test('a daemon finds the primary among several hosts and follows it after a failover, with running jobs and wake-ups', async () => {
  const primary = await startPrivateServer();
  const standby = await startStandby(primary);
  const context = through(primary, `${bothOf(primary, standby)}?target_session_attrs=read-write`);
  const effects = await useEffects();
  const gate = effects.gate('go');
  const daemon = await startProcess(context, { env: { ...effects.env, LEASE_SECONDS: '600' } });
  try {
    const running = await addJob(context, { type: 'work', targetId: 'moved', payload: { until: gate.path } });
    await eventually(() => expect(effects.read().filter((e) => e.kind === 'begin')).toHaveLength(1), longTimeouts);
    // What the standby has not received when the primary dies would be lost: this is about following.
    await eventually(async () => expect(await replicated(primary)).toBe(true), longTimeouts);
    await primary.halt();
    await standby.promote();
    await daemon.ready();
    const later = await daemon.request('POST', '/api/targets/after/jobs', { type: 'work' });
    expect(later.status).toBe(201);
    gate.release();
    await eventually(async () => {
      expect(await reread(context, running)).toMatchObject({ status: 'SUCCESS', attempt: 1 });
      expect((await reread(context, later.body)).status).toBe('SUCCESS');
    }, longTimeouts);
    // LISTEN and the heartbeat follow as well.
    await eventually(async () => {
      const rows = await context.db.query<{ name: string }>(
        `select distinct application_name as name from pg_stat_activity where application_name like 'leasehold-%'`,
      );
      expect(rows.map((row) => row.name)).toContain('leasehold-listen');
    }, longTimeouts);
    await eventually(
      () => expect(daemon.output()).toContain('another database server accepts writes now'),
      longTimeouts,
    );
    const printed: string[] = [];
    const terminal = { env: { DATABASE_URL: context.url }, out: (text: string) => printed.push(text), err: () => {} };
    expect(await runCli(['tenants', 'list', '--json'], terminal)).toBe(0);
    expect(printed.join('')).toContain(context.tenant.slug);
    checkEffects(effects.read());
  } finally {
    await context.db.close();
  }
});

test('on a standby a daemon waits with one log line, without a stack, and begins after the promotion', async () => {
  const primary = await startPrivateServer();
  const standby = await startStandby(primary);
  const daemon = await launchProcess({ ...primary, url: standby.url });
  const alone = await launchProcess({ ...primary, url: `${standby.url}?target_session_attrs=read-write` });
  const reasonsIn = (output: string) =>
    [...output.matchAll(/"reason":"([^"]*)","msg":"database cannot be used(?: yet)?;/g)].map(
      ([, reason = '']) => reason,
    );
  for (const one of [daemon, alone]) {
    await eventually(() => expect(reasonsIn(one.output()).at(-1)).toMatch(/standby or read-only/), longTimeouts);
    expect(await one.isReady()).toBe(false);
  }
  await standby.promote();
  for (const one of [daemon, alone]) {
    await one.ready();
    // One line for each change of the reason: a probe may get no answer in time.
    const reasons = reasonsIn(one.output());
    expect(reasons.filter((reason, n) => reason === reasons[n - 1])).toEqual([]);
    expect(one.output()).not.toMatch(/\n\s+at /);
  }
});

async function replicated(primary: PrivateServer): Promise<boolean> {
  const [row] = await primary.db.query<{ done: boolean }>(
    'select replay_lsn = pg_current_wal_lsn() as done from pg_stat_replication',
  );
  return row?.done === true;
}

test('of two servers that accept writes the outdated one is not used, and this is logged', async () => {
  const primary = await startPrivateServer();
  const standby = await startStandby(primary);
  const lines: string[] = [];
  const logger = {
    ...createLogger('silent'),
    error: (_fields: object, text: string) => lines.push(text),
    warn: () => {},
    info: (text: string) => lines.push(text),
  } as unknown as ReturnType<typeof createLogger>;
  const db = new Database({ url: bothOf(primary, standby), poolMax: 2, logger });
  try {
    const portOf = async () =>
      Number((await db.query<{ port: string }>(`select current_setting('port') as port`))[0]?.port);
    let moved = 0;
    const watch = new ServerMonitor({ servers: db.servers, logger, onServerChanged: () => void (moved += 1) });
    await watch.check();
    expect(await portOf()).toBe(primary.port);
    // The primary lives on, as it does behind a broken network.
    await standby.promote();
    expect(await portOf()).toBe(primary.port);
    // A probe that a busy machine does not answer in time is repeated, as the monitor does.
    await eventually(async () => {
      await watch.check();
      expect(moved).toBe(1);
    }, longTimeouts);
    expect(lines).toEqual(['two database servers accept writes; one is not used']);
    expect(await portOf()).toBe(standby.port);
  } finally {
    await db.close();
  }
});
