// The client behind a connection that loses requests, answers and streams: one job per call, every event once.
import { describe, expect, it } from 'vitest';
import { LeaseholdClient } from '../../../server/client/client.ts';
import { ConnectionError, ProblemError } from '../../../server/client/client-errors.ts';
import { jobRequest } from '../../../server/client/enqueue-requests.ts';
import { defineJob } from '../../../server/index.ts';
import { scopes } from '../../../server/tenants/api-keys/key.ts';
import { createApiKey } from '../../../server/tenants/api-keys/key-store.ts';
import { startDaemon, useDaemon } from '../../support/daemon/daemon.ts';
import { eventually } from '../../support/eventually.ts';
import { cycle, type FaultProxy, startFaultProxy } from '../../support/http/fault-proxy.ts';
import { addTenant, useDatabase } from '../../support/postgres/database.ts';

const context = useDatabase();
/** Opened once: for handlers that wait, and for those that begin later. */
const gate = createGate();
const echo = defineJob({ type: 'echo', run: ({ payload }) => payload });
/** Only the daemons of the restart run it. */
const gated = defineJob({
  type: 'gated',
  run: () => gate.opened.then(() => 'through'),
});

const running = useDaemon(context, { handlers: [echo], env: { STREAM_PING_SECONDS: '1' } });

/** A client of a new tenant behind a proxy, and one without it. */
async function open(): Promise<{ client: LeaseholdClient; direct: LeaseholdClient; proxy: FaultProxy }> {
  const { tenant } = await addTenant(context.db);
  const created = await createApiKey(context.db, { tenantId: tenant.id, name: 'client', scopes: [...scopes] });
  const proxy = await startFaultProxy(running.daemon.url);
  return {
    proxy,
    client: new LeaseholdClient({ url: proxy.url, apiKey: created.text }),
    direct: new LeaseholdClient({ url: running.daemon.url, apiKey: created.text }),
  };
}

const everyFault = cycle(
  ...([
    'dropRequest',
    'none',
    'dropAnswer',
    'none',
    'tooMany',
    'none',
    'cutAnswer',
    'none',
    'unavailable',
    'none',
  ] as const),
);

describe('over an unreliable connection', () => {
  it('makes exactly one job per call', async () => {
    const { client, direct, proxy } = await open();
    proxy.plan = everyFault;
    const calls = Array.from({ length: 30 }, (_, n) => client.enqueue(echo, { n }, { targetId: `t${n % 5}` }));
    const handles = await Promise.all(calls);
    expect(new Set(handles.map(({ id }) => id)).size).toBe(30);
    expect(proxy.requests.length).toBeGreaterThan(30);
    // One key for each call, however often it was sent.
    expect(new Set(proxy.requests.map(({ idempotencyKey }) => idempotencyKey)).size).toBe(30);
    expect(await direct.jobs.list({ limit: 200 }).take(5000)).toHaveLength(30);
  });

  it('makes exactly the jobs of a batch that is sent in several parts', async () => {
    const { client, direct, proxy } = await open();
    proxy.plan = cycle('dropAnswer', 'none', 'cutAnswer', 'unavailable', 'none');
    const results = await client.enqueueMany(Array.from({ length: 1500 }, (_, n) => jobRequest(echo, { n })));
    expect(results.every(({ ok }) => ok)).toBe(true);
    expect(new Set(results.map((result) => (result.ok ? result.id : ''))).size).toBe(1500);
    expect(await direct.jobs.list({ limit: 200 }).take(5000)).toHaveLength(1500);
  });

  it('yields every event once, in order, over streams that are cut', async () => {
    const { client, direct, proxy } = await open();
    const abort = new AbortController();
    const seen: string[] = [];
    let opened = () => {};
    const isOpen = new Promise<void>((resolve) => {
      opened = resolve;
    });
    const reading = (async () => {
      for await (const message of client.events.stream({ signal: abort.signal })) {
        if (message.kind === 'open') opened();
        if (message.kind === 'reset') throw new Error(`reset: ${message.reason}`);
        if (message.kind === 'event' && message.event.job_id)
          seen.push(`${message.event.job_id} ${message.event.type}`);
      }
    })().catch((error: unknown) => {
      if (!abort.signal.aborted) throw error;
    });
    await isOpen;
    // A stream that is refused or cut while it opens counts too.
    proxy.plan = cycle('none', 'dropRequest', 'unavailable', 'none', 'tooMany');
    const ids: string[] = [];
    for (let n = 0; n < 30; n++) {
      ids.push((await direct.enqueue(echo, { n }, { targetId: 'lane' })).id);
      if (n % 4 === 0) proxy.cutAll();
    }
    const types = ['job.enqueued', 'job.started', 'job.completed'];
    await eventually(() => expect(seen.length).toBeGreaterThanOrEqual(ids.length * types.length));
    abort.abort();
    await reading;
    expect(seen.toSorted()).toEqual(ids.flatMap((id) => types.map((type) => `${id} ${type}`)).toSorted());
    const completed = seen.filter((entry) => entry.endsWith('job.completed')).map((entry) => entry.split(' ')[0]);
    expect(completed).toEqual(ids);
    expect(proxy.requests.filter(({ lastEventId }) => lastEventId !== undefined).length).toBeGreaterThan(2);
  });

  it('continues a stream after a stored position', async () => {
    const { client, direct } = await open();
    let position = '';
    for await (const message of client.events.stream()) {
      position = message.position;
      break;
    }
    const { id } = await direct.enqueue(echo, {});
    await direct.jobs.wait(id);
    const types: string[] = [];
    for await (const message of client.events.stream({ after: position, job: id })) {
      if (message.kind === 'event') types.push(message.event.type);
      if (types.length === 3) break;
    }
    expect(types).toEqual(['job.enqueued', 'job.started', 'job.completed']);
  });

  it('waits through a restart of the daemon', async () => {
    const { client, proxy } = await open();
    const first = await startDaemon(context, { handlers: [gated] });
    proxy.setTarget(first.url);
    const handle = await client.enqueue(gated, {}, { onDrain: 'requeue' });
    const waiting = client.jobs.wait(handle);
    await eventually(() => expect(proxy.requests.some(({ path }) => path.includes('/stream?'))).toBe(true));
    await first.stop(0);
    proxy.cutAll();
    const second = await startDaemon(context, { handlers: [gated] });
    proxy.setTarget(second.url);
    await eventually(async () => expect((await client.jobs.get(handle)).status).toBe('RUNNING'));
    gate.open();
    expect(await waiting).toMatchObject({ status: 'SUCCESS', result: 'through' });
  });

  it('does not repeat a request that may have taken effect and is not safe to repeat', async () => {
    const { client, direct, proxy } = await open();
    await direct.targets.pause('still');
    const { id } = await direct.enqueue(echo, {}, { targetId: 'still' });
    await direct.jobs.pause(id);
    const before = proxy.requests.length;
    proxy.plan = () => 'dropAnswer';
    const error = await client.jobs.resume(id).catch((caught: unknown) => caught);
    expect(error).toBeInstanceOf(ConnectionError);
    expect(error).toMatchObject({ mayHaveHappened: true, attempts: 1 });
    expect(proxy.requests.length - before).toBe(1);
    // What was refused before anything happened is sent again, after the time that the server asked for.
    await direct.jobs.pause(id);
    proxy.plan = (_request, index) => (index === before + 1 ? 'unavailable' : 'none');
    expect((await client.jobs.resume(id)).status).toBe('QUEUED');
    expect(proxy.requests.length - before).toBe(3);
  });

  it('throws the last refusal when its time limit has passed', async () => {
    const { client, proxy } = await open();
    proxy.plan = () => 'tooMany';
    const error = await client.enqueue(echo, {}, { retryForMs: 500 }).catch((caught: unknown) => caught);
    expect(error).toBeInstanceOf(ProblemError);
    expect(error).toMatchObject({ status: 429, code: 'TOO_MANY_REQUESTS', attempts: 1 });
  });

  it('deletes a schedule once, also if the answer is lost', async () => {
    const { client, direct, proxy } = await open();
    const { id } = await direct.schedules.create({ name: 'n', cron: '0 3 * * *', job: { type: 'echo' } });
    proxy.plan = (_request, index) => (index === 0 ? 'dropAnswer' : 'none');
    await client.schedules.delete(id);
    await expect(client.schedules.delete(id)).rejects.toMatchObject({ status: 404 });
  });
});

function createGate(): { opened: Promise<void>; open(): void } {
  let open = () => {};
  const opened = new Promise<void>((resolve) => {
    open = resolve;
  });
  return { opened, open };
}
