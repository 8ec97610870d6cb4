// What one daemon leaves or writes is taken up by others and by readers at once: all polls here are an hour away.
import { expect, onTestFinished, test } from 'vitest';
import type { Daemon } from '../../../server/daemon/daemon.ts';
import { createApiKey } from '../../../server/tenants/api-keys/key-store.ts';
import { defineJob } from '../../../server/worker/handlers/define-job.ts';
import type { JobContext } from '../../../server/worker/handlers/job-context.ts';
import { startDaemon } from '../../support/daemon/daemon.ts';
import { eventually } from '../../support/eventually.ts';
import { EventReader } from '../../support/http/sse.ts';
import { reread } from '../../support/jobs.ts';
import { directUrl, useTenantPerTest } from '../../support/postgres/database.ts';
import { startProxy } from '../../support/postgres/proxies/proxy.ts';

const context = useTenantPerTest();
const noPolls = { POLL_INTERVAL_SECONDS: '3600', SWEEP_INTERVAL_SECONDS: '3600', STREAM_POLL_SECONDS: '60' };
const type = 'test.work';

function start(run: (context: JobContext) => unknown): Promise<Daemon> {
  return startDaemon(context, { env: noPolls, handlers: [defineJob({ type, run })] });
}

/** A handler that ends when it is opened or stopped. */
function useGate() {
  let open = () => {};
  const opened = new Promise<void>((resolve) => {
    open = resolve;
  });
  onTestFinished(() => open());
  const stopped = (signal: AbortSignal) =>
    new Promise<void>((resolve) => signal.addEventListener('abort', () => resolve()));
  return { open, run: ({ signal }: JobContext) => Promise.race([opened, stopped(signal)]) };
}

async function begin(daemon: Daemon, jobs: object[]) {
  const enqueued = await daemon.enqueue(
    context.tenant,
    jobs.map((job) => ({ type, payload: {}, ...job })),
    'test',
  );
  await eventually(async () => expect((await reread(context, enqueued[0]!.job)).status).toBe('RUNNING'));
  return enqueued.map((one) => one.job);
}

test('a job that a drain requeues starts in another daemon', async () => {
  const gate = useGate();
  const one = await start(gate.run);
  const [job] = await begin(one, [{ onDrain: 'requeue' }]);
  await start(() => 'elsewhere');
  const stopped = one.stop(0);
  await eventually(async () =>
    expect(await reread(context, job!)).toMatchObject({ status: 'SUCCESS', result: 'elsewhere' }),
  );
  await stopped;
});

test('a lane that advances while its daemon drains continues in another one', async () => {
  const gate = useGate();
  const one = await start(gate.run);
  const [first, second] = await begin(one, [{ targetId: 'lane' }, { targetId: 'lane' }]);
  await start(() => 'elsewhere');
  const stopped = one.stop(60_000);
  await eventually(() => expect(one.workers.draining).toBe(true));
  gate.open();
  await eventually(async () =>
    expect(await reread(context, second!)).toMatchObject({ status: 'SUCCESS', result: 'elsewhere' }),
  );
  expect(await reread(context, first!)).toMatchObject({ status: 'SUCCESS', result: null });
  await stopped;
});

/** How many connections have read new events of a log within the last second. */
async function recentReads(): Promise<number> {
  const [row] = await context.db.query<{ count: number }>(
    `select count(*)::int as count
       from pg_stat_activity
      where datname = current_database()
        and pid <> pg_backend_pid()
        and query like '%pg_visible_in_snapshot%'
        and query_start > clock_timestamp() - interval '1 second'`,
  );
  return row?.count ?? 0;
}

test('the end of a job reaches the readers of streams, here and in another daemon', async () => {
  const gate = useGate();
  const one = await start(gate.run);
  const two = await startDaemon(context, { env: noPolls });
  const { text: key } = await createApiKey(context.db, { tenantId: context.tenant.id, name: 'test', scopes: ['read'] });
  const open = async (daemon: Daemon) => (await EventReader.open(`${daemon.url}/api/events/stream`, { key })).ready();
  const readers = await Promise.all([open(one), open(two)]);
  await begin(one, [{}]);
  for (const reader of readers) await reader.until((r) => r.events.some((m) => m.event === 'job:started'));
  // A feed that has read events reads again soon: until it is idle, that would find the end as well.
  await eventually(async () => expect(await recentReads()).toBe(0));
  gate.open();
  for (const reader of readers) await reader.until((r) => r.events.some((m) => m.event === 'job:completed'));
});

test('a daemon that does not receive its own notifications logs the remedy, and polls as often as without them', async () => {
  const { url } = await startProxy(context.url, { asPooler: true, dropsNotifications: true });
  const daemon = await startDaemon({ ...context, url }, { env: { LISTEN_DATABASE_URL: '' } });
  const readiness = async ({ url: origin }: Daemon) => {
    const { checks } = (await (await fetch(`${origin}/readyz`)).json()) as { checks: Record<string, object> };
    return checks.notifications;
  };
  await eventually(async () =>
    expect(await readiness(daemon)).toEqual({ ok: true, detail: expect.stringContaining('LISTEN_DATABASE_URL') }),
  );
  const direct = await startDaemon({ ...context, url }, { env: { LISTEN_DATABASE_URL: directUrl(context) } });
  await eventually(async () => expect(await readiness(direct)).toEqual({ ok: true }));
});
