import { connect } from 'node:net';
import { beforeEach, describe, expect, it, onTestFinished } from 'vitest';
import { EventStreams, type StreamOptions } from '../../../../server/events/stream/streams.ts';
import { eventStreamRoutes } from '../../../../server/http/resources/events.ts';
import { createLogger } from '../../../../server/kernel/logger.ts';
import { scopes } from '../../../../server/tenants/api-keys/key.ts';
import { createApiKey } from '../../../../server/tenants/api-keys/key-store.ts';
import { writeEvent, writeOutOfOrder } from '../../../support/events.ts';
import { eventually } from '../../../support/eventually.ts';
import { startApp, type TestApp } from '../../../support/http/app.ts';
import { EventReader } from '../../../support/http/sse.ts';
import { addJob, claim, finish } from '../../../support/jobs.ts';
import { addTenant, useTenantPerTest } from '../../../support/postgres/database.ts';

const context = useTenantPerTest();
const fast: StreamOptions = {
  maxReaders: 100,
  bufferBytes: 1_000_000,
  pollMs: 20,
  pingMs: 60_000,
  now: () => context.db.now(),
};

interface Running {
  app: TestApp;
  streams: EventStreams;
  stop(): Promise<void>;
}

/** A daemon's streams and HTTP side, stopped with the test. */
async function serve(options: Partial<StreamOptions> = {}): Promise<Running> {
  const streams = new EventStreams(context.db, { ...fast, ...options }, createLogger('silent'));
  await streams.start();
  const { app, stop: stopApp } = await startApp(context, (deps) => ({
    routes: [eventStreamRoutes({ ...deps, streams })],
  }));
  const stop = async () => {
    await streams.stop();
    await stopApp();
  };
  onTestFinished(stop);
  return { app, streams, stop };
}

let key: string;
beforeEach(async () => {
  key = (await createApiKey(context.db, { tenantId: context.tenant.id, name: 'test', scopes })).text;
});

function read({ app }: Running, query = '', lastEventId?: string): Promise<EventReader> {
  return EventReader.open(`${app.url}/api/events/stream${query}`, { key, lastEventId });
}

const names = (reader: EventReader) => reader.events.map((message) => message.event);
const numbers = (reader: EventReader) => reader.events.map((message) => Number(message.data.data.n));
const sorted = (values: number[]) => [...values].sort((a, b) => a - b);
const write = (n: number, targetId?: string) =>
  writeEvent(context.db, context.schema, { n, ...(targetId !== undefined && { targetId }) });

describe('a live stream', () => {
  it('sends events under their public names', async () => {
    const reader = await (await read(await serve())).ready();
    expect(reader.response.headers.get('content-type')).toMatch(/^text\/event-stream/);
    expect(reader.response.headers.get('cache-control')).toMatch(/no-store/);
    expect(reader.response.headers.get('x-accel-buffering')).toBe('no');
    const job = await addJob(context);
    const { jobs } = await claim(context);
    for (const one of jobs) await finish(context, one);
    await reader.until((r) => r.events.length === 3);
    expect(names(reader)).toEqual(['job:enqueued', 'job:started', 'job:completed']);
    expect(reader.events[2]?.data).toMatchObject({
      type: 'job.completed',
      job_id: job.id,
      from: 'RUNNING',
      to: 'SUCCESS',
    });
  });

  it('shows one job or one target alone', async () => {
    const server = await serve();
    const first = await addJob(context, { targetId: 'a' });
    const ofJob = await (await read(server, `?job_id=${first.id}`)).ready();
    const ofTarget = await (await read(server, '?target_id=b')).ready();
    await addJob(context, { targetId: 'b' });
    await claim(context, { limit: 1 });
    await write(1, 'b');
    await ofJob.until((r) => r.events.length >= 1);
    await ofTarget.until((r) => r.events.length >= 2);
    expect(ofJob.events.map((m) => m.data.job_id)).toEqual([first.id]);
    expect(new Set(ofTarget.events.map((m) => m.data.target_id))).toEqual(new Set(['b']));
  });

  it('shows nothing of other tenants', async () => {
    const server = await serve();
    const { schema } = await addTenant(context.db);
    const reader = await (await read(server)).ready();
    await writeEvent(context.db, schema, { n: 666 });
    await write(1);
    await reader.until((r) => r.events.length > 0);
    expect(numbers(reader)).toEqual([1]);
  });

  it('sends events at once when it is woken', async () => {
    const server = await serve({ pollMs: 3_600_000 });
    const reader = await (await read(server)).ready();
    await write(1);
    server.streams.wake(context.tenant.slug);
    await reader.until((r) => r.events.length === 1);
  });

  it('sends pings with an id to resume from', async () => {
    const server = await serve({ pingMs: 50 });
    const reader = await read(server, '?target_id=silent');
    await reader.until((r) => r.messages.length >= 3);
    expect(new Set(reader.messages.map((m) => m.event))).toEqual(new Set(['ping']));
    const id = reader.lastId;
    reader.close();
    await write(7, 'silent');
    const back = await read(server, '?target_id=silent', id);
    await back.until((r) => r.events.length === 1);
  });
});

describe('a reader that reconnects', () => {
  it('gets the events that it missed, each once', async () => {
    const server = await serve();
    const reader = await (await read(server)).ready();
    await write(1);
    await write(2);
    await reader.until((r) => r.events.length === 2);
    reader.close();
    await write(3);
    // From the first of two events that came together, or not: both work.
    const afterOne = await read(server, '', reader.events[0]?.id);
    await afterOne.until((r) => r.events.length === 2);
    const afterTwo = await read(server, '', reader.events[1]?.id);
    await write(4);
    await afterTwo.until((r) => r.events.length === 2);
    await afterOne.until((r) => r.events.length === 3);
    expect(numbers(afterOne)).toEqual([2, 3, 4]);
    expect(numbers(afterTwo)).toEqual([3, 4]);
  });

  it('may give its id in the address, and the header takes precedence', async () => {
    const server = await serve();
    const reader = await (await read(server)).ready();
    const start = reader.lastId ?? '';
    await write(1);
    await write(2);
    await reader.until((r) => r.events.length === 2);
    const byAddress = await read(server, `?last_event_id=${start}`);
    await byAddress.until((r) => r.events.length === 2);
    const byHeader = await read(server, `?last_event_id=${start}`, reader.events[0]?.id);
    await byHeader.until((r) => r.events.length === 1);
    await write(3);
    await byHeader.until((r) => r.events.length === 2);
    expect(numbers(byHeader)).toEqual([2, 3]);
  });

  it('gets every event once while many jobs run, on daemons with different positions', async () => {
    const servers = [await serve({ pollMs: 5 }), await serve({ pollMs: 60 })];
    const reader = await (await read(servers[0] as Running)).ready();
    let id = reader.lastId;
    reader.close();
    let writing = true;
    const written = writeOutOfOrder(context, { writers: 6, each: 20, targets: 4 }).finally(() => {
      writing = false;
    });
    const seen: number[] = [];
    const perTarget = new Map<string, number[]>();
    const take = (from: EventReader) => {
      for (const message of from.events) {
        expect(message.event).toBe('test:happened');
        const n = Number(message.data.data.n);
        seen.push(n);
        perTarget.set(message.data.target_id, [...(perTarget.get(message.data.target_id) ?? []), n]);
      }
      id = from.lastId ?? id;
    };
    for (let turn = 0; writing; turn++) {
      const next = await read(servers[turn % 2] as Running, '', id);
      const enough = 1 + Math.floor(Math.random() * 8);
      await eventually(() => {
        if (writing && next.events.length < enough) throw new Error('not yet');
      });
      next.close();
      await eventually(() => expect(next.ended).toBe(true));
      take(next);
    }
    const committed = await written;
    const last = await read(servers[0] as Running, '', id);
    await eventually(() => expect(seen.length + last.events.length).toBeGreaterThanOrEqual(committed.length));
    take(last);
    expect(sorted(seen)).toEqual(sorted(committed));
    for (const [target, order] of perTarget) expect(order, target).toEqual(sorted(order));
  });

  it('gets a reset if its id is invalid, and then new events', async () => {
    const server = await serve();
    for (const id of ['garbage', '1:1:', 'x'.repeat(5000)]) {
      const reader = await read(server, '', id);
      await reader.until((r) => r.events.length === 1);
      expect(reader.events[0]).toMatchObject({ event: 'reset', data: { reason: 'unknown_id' } });
      await write(5);
      await reader.until((r) => r.events.length === 2);
      reader.close();
    }
  });

  it('gets a reset if its next events were deleted', async () => {
    const server = await serve();
    const { db, schema } = context;
    const reader = await (await read(server)).ready();
    const id = reader.lastId;
    await write(1);
    await reader.until((r) => r.events.length === 1);
    await db.query(
      `insert into ${schema}.event_seals (number, snapshot, event_keys, event_hashes, previous_hash, hash, pruned_at, pruned_by)
       values (1, pg_current_snapshot()::text, '{}', '', '', '', now(), 2)`,
    );
    const back = await read(server, '', id);
    await back.until((r) => r.events.length === 1);
    expect(back.events[0]).toMatchObject({ event: 'reset', data: { reason: 'history_gone' } });
  });
});

describe('a stream that begins with a snapshot', () => {
  it('sends the unfinished jobs, then every event since, and no snapshot to a reader that reconnects', async () => {
    const server = await serve();
    const done = await addJob(context, { targetId: 's' });
    const { jobs } = await claim(context);
    for (const one of jobs) await finish(context, one);
    const waiting = await addJob(context, { targetId: 's' });
    const reader = await read(server, '?target_id=s&snapshot=true');
    await reader.until((r) => r.events.length === 1);
    expect(reader.events[0]).toMatchObject({
      event: 'snapshot',
      data: { complete: true, jobs: [{ id: waiting.id, status: 'QUEUED' }] },
    });
    await claim(context);
    await reader.until((r) => r.events.length === 2);
    expect(reader.events[1]).toMatchObject({ event: 'job:started', data: { job_id: waiting.id } });
    const back = await read(server, '?target_id=s&snapshot=true', reader.events[0]?.id);
    await back.until((r) => r.events.length === 1);
    expect(names(back)).toEqual(['job:started']);
    const anew = await read(server, '?target_id=s&snapshot=true', 'garbage');
    await anew.until((r) => r.events.length === 2);
    expect(names(anew)).toEqual(['reset', 'snapshot']);
    const ofJob = await read(server, `?job_id=${done.id}&snapshot=true`);
    await ofJob.until((r) => r.events.length === 1);
    expect(ofJob.events[0]?.data.jobs).toMatchObject([{ id: done.id, status: 'SUCCESS' }]);
  });

  it('neither misses nor repeats events around the snapshot', async () => {
    const server = await serve({ pollMs: 5 });
    const known = new Map<string, string>();
    let adding = true;
    const added: string[] = [];
    const writer = (async () => {
      while (adding) added.push((await addJob(context, { targetId: 'around' })).id);
    })();
    for (let i = 0; i < 10; i++) {
      const reader = await read(server, '?target_id=around&snapshot=true');
      await reader.until((r) => r.events.length >= 4);
      reader.close();
      const [first, ...rest] = reader.events;
      const shown: string[] = first?.data.jobs.map((job: { id: string }) => job.id);
      const reported = rest.map((message) => message.data.job_id as string);
      // Together they are a beginning of all jobs, each once.
      const all = [...[...shown].reverse(), ...reported];
      expect(new Set(all).size).toBe(all.length);
      await eventually(() => expect(all).toEqual(added.slice(0, all.length)));
      for (const id of all) known.set(id, 'seen');
    }
    adding = false;
    await writer;
    expect(known.size).toBeGreaterThan(0);
  });
});

describe('streams and their limits', () => {
  it('serves hundreds of readers with the queries of one', async () => {
    const server = await serve({ maxReaders: 1000, pollMs: 3_600_000 });
    const readers = await Promise.all(
      Array.from({ length: 200 }, async (_, i) => (await read(server, i % 2 ? `?target_id=t${i}` : '')).ready()),
    );
    let queries = 0;
    const query = context.db.query.bind(context.db);
    context.db.query = ((text: string, values?: unknown[]) => {
      if (text.includes('pg_visible_in_snapshot')) queries++;
      return query(text, values);
    }) as typeof context.db.query;
    onTestFinished(() => {
      context.db.query = query;
    });
    for (let n = 0; n < 10; n++) {
      await write(n, 't1');
      server.streams.wake(context.tenant.slug);
    }
    await Promise.all(
      readers.filter((_, i) => i % 2 === 0 || i === 1).map((r) => r.until((x) => x.events.length === 10)),
    );
    const quiet = readers.filter((_, i) => i % 2 === 1 && i !== 1);
    expect(quiet.every((r) => r.events.length === 0)).toBe(true);
    // As many as there were wake-ups, not as there are readers.
    expect(queries).toBeLessThan(100);
  });

  it('drops a reader that never reads, and serves the others', async () => {
    const server = await serve({ bufferBytes: 65_536 });
    const { hostname, port } = new URL(server.app.url);
    const lazy = connect(Number(port), hostname);
    onTestFinished(() => void lazy.destroy());
    lazy.on('error', () => {});
    lazy.write(`GET /api/events/stream HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ${key}\r\n\r\n`);
    lazy.pause();
    const reader = await (await read(server)).ready();
    await eventually(() => expect(server.streams.readerCount).toBe(2));
    const data = JSON.stringify({ text: 'x'.repeat(100_000) });
    for (let i = 0; i < 200 && server.streams.readerCount === 2; i++) {
      await context.db.query(
        `insert into ${context.schema}.events (type, actor, data) values ('test.big', 'test', $1)`,
        [data],
      );
      await reader.until((r) => r.events.length > i);
    }
    await eventually(() => expect(server.streams.readerCount).toBe(1));
  });

  it('ends the stream of a revoked key', async () => {
    const server = await serve({ pingMs: 50 });
    const revoked = await server.app.keyFor(context.tenant.id);
    const reader = await EventReader.open(`${server.app.url}/api/events/stream`, { key: revoked });
    await reader.ready();
    await context.db.query('update leasehold.api_keys set revoked_at = now() where id = $1', [revoked.slice(3, 19)]);
    await reader.until((r) => r.ended);
    expect(reader.events.at(-1)).toMatchObject({ event: 'closed', data: { reason: 'key_revoked' } });
  });

  it('closes all streams first at shutdown, and accepts no more', async () => {
    const server = await serve();
    const reader = await (await read(server)).ready();
    await server.streams.closeAll();
    await reader.until((r) => r.ended);
    expect(reader.events.at(-1)).toMatchObject({ event: 'closed', data: { reason: 'shutdown' } });
    const refused = await server.app.request('GET', '/api/events/stream', { key });
    expect(refused).toMatchObject({ status: 503, body: { code: 'DRAINING' } });
  });

  it('accepts no more readers than allowed, needs the scope, and answers HEAD', async () => {
    const server = await serve({ maxReaders: 1 });
    const reader = await (await read(server)).ready();
    expect((await server.app.request('GET', '/api/events/stream', { key })).status).toBe(429);
    reader.close();
    await eventually(() => expect(server.streams.readerCount).toBe(0));
    const worker = await server.app.keyFor(context.tenant.id, ['worker']);
    expect((await server.app.request('GET', '/api/events/stream', { key: worker })).status).toBe(403);
    expect((await server.app.request('HEAD', '/api/events/stream', { key })).status).toBe(200);
  });

  it('accepts a limited number of readers of one key, and of one tenant, and names the limit', async () => {
    const server = await serve({ maxReadersPerTenant: 3, maxReadersPerKey: 2 });
    const other = await server.app.keyFor(context.tenant.id);
    const open = (text: string) => EventReader.open(`${server.app.url}/api/events/stream`, { key: text });
    const readers = [await (await open(key)).ready(), await (await open(key)).ready()];
    const refused = await server.app.request('GET', '/api/events/stream', { key });
    expect(refused).toMatchObject({ status: 429, body: { code: 'TOO_MANY_REQUESTS', scope: 'key', limit: 2 } });
    expect(Number(refused.headers.get('retry-after'))).toBeGreaterThan(0);
    readers.push(await (await open(other)).ready());
    const full = await server.app.request('GET', '/api/events/stream', { key: other });
    expect(full).toMatchObject({ status: 429, body: { scope: 'tenant', limit: 3 } });
    for (const reader of readers) reader.close();
    await eventually(() => expect(server.streams.readerCount).toBe(0));
    (await (await open(key)).ready()).close();
  });
});
