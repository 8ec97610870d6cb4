// How much thousands of live readers cost: `tsx scripts/bench/event-streams.ts [readers] [events]`.
// Needs DATABASE_URL, or starts the embedded Postgres in DATA_DIR. Prints one line of JSON.
import { connect, type Socket } from 'node:net';
import { monitorEventLoopDelay } from 'node:perf_hooks';
import { Registry } from 'prom-client';
import { Database } from '../../server/database/database.ts';
import { migrateControl } from '../../server/database/migrations/migrate.ts';
import { startEmbeddedPostgres } from '../../server/embedded-postgres/start.ts';
import { sealEvents } from '../../server/events/seals/seal.ts';
import { EventStreams } from '../../server/events/stream/streams.ts';
import { createApp } from '../../server/http/app.ts';
import { eventStreamRoutes } from '../../server/http/resources/events.ts';
import { HttpServer } from '../../server/http/server.ts';
import { loadConfig } from '../../server/kernel/config.ts';
import { createLogger } from '../../server/kernel/logger.ts';
import { KeyVerifier } from '../../server/tenants/api-keys/verifier.ts';
import { createTenant } from '../../server/tenants/create-tenant.ts';
import { TenantRegistry } from '../../server/tenants/registry.ts';
import { verifyTenant } from '../../server/verify/verify-tenant.ts';

const [readers = 2000, events = 500] = process.argv.slice(2).map(Number);
const config = loadConfig();
const logger = createLogger('warn');
const embedded =
  config.databaseUrl === '' ? await startEmbeddedPostgres({ dataDir: config.dataDir, logger }) : undefined;
const db = new Database({ url: embedded?.url ?? config.databaseUrl, poolMax: 10, logger });
await migrateControl(db, logger);
const { tenant, key } = await createTenant(db, { slug: `bench_${Date.now().toString(36)}` });

let queries = 0;
const counted: Pick<Database, 'query'> = {
  query: (text, values) => {
    queries++;
    return db.query(text, values);
  },
};
const options = {
  maxReaders: readers,
  bufferBytes: config.streamBufferBytes,
  pollMs: 1000,
  pingMs: 15_000,
  now: () => db.now(),
};
const streams = new EventStreams({ forTenant: () => counted as Database }, options, logger);
const registry = new TenantRegistry(db, logger);
const keys = new KeyVerifier(db, config, logger);
for (const service of [streams, registry, keys]) await service.start();
const routes = [eventStreamRoutes({ db, streams, registry })];
const readiness = () => ({ migrated: true, draining: false });
const app = createApp({ config, db, logger, registry, keys, metricsRegistry: new Registry(), readiness, routes });
const server = new HttpServer(() => app, { host: '127.0.0.1', port: 0 }, logger);
await server.start();

const sockets: Socket[] = [];
const received = new Array<number>(readers).fill(0);
const port = Number(new URL(server.url).port);
const openedAt = performance.now();
for (let i = 0; i < readers; i++) {
  const socket = connect(port, '127.0.0.1');
  socket.write(`GET /api/events/stream HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ${key.text}\r\n\r\n`);
  let rest = '';
  socket.on('data', (data) => {
    const parts = (rest + data.toString('latin1')).split('event: bench:');
    received[i] = (received[i] ?? 0) + parts.length - 1;
    // A name may be cut in two.
    rest = parts.at(-1)?.slice(-12) ?? '';
  });
  sockets.push(socket);
  if (i % 100 === 99) await until(() => streams.readerCount > i - 50);
}
await until(() => streams.readerCount === readers);
const openMs = performance.now() - openedAt;
const queriesToOpen = queries;

queries = 0;
const delay = monitorEventLoopDelay({ resolution: 5 });
delay.enable();
const writtenAt = performance.now();
for (let i = 0; i < events; i += 10) {
  await db.query(
    `insert into ${tenant.schema}.events (type, actor, data) select 'bench.tick', 'bench', '{"n": 1}' from generate_series(1, 10)`,
  );
  streams.wake(tenant.slug);
}
await until(() => received.every((count) => count >= events));
const deliverMs = performance.now() - writtenAt;
delay.disable();
const queriesToDeliver = queries;
const memoryMb = Math.round(process.memoryUsage().rss / 1e6);
for (const socket of sockets) socket.destroy();
await streams.stop();

const many = 200_000;
for (let written = 0; written < many; written += 1000) {
  await db.query(
    `insert into ${tenant.schema}.events (type, actor, data) select 'bench.tick', 'bench', '{"n": 1}' from generate_series(1, 1000)`,
  );
}
const sealedAt = performance.now();
while (!(await sealEvents(db, tenant.schema)).complete);
const sealMs = performance.now() - sealedAt;
const verifiedAt = performance.now();
const found = await verifyTenant(db, tenant.schema);
const verifyMs = performance.now() - verifiedAt;

const perSecond = (count: number, ms: number) => Math.round((count / ms) * 1000);
process.stdout.write(
  `${JSON.stringify({
    readers,
    open_ms: Math.round(openMs),
    queries_to_open: queriesToOpen,
    events,
    deliver_ms: Math.round(deliverMs),
    messages_per_second: perSecond(events * readers, deliverMs),
    queries_to_deliver: queriesToDeliver,
    loop_delay_p99_ms: Math.round(delay.percentile(99) / 1e6),
    memory_mb: memoryMb,
    sealed_per_second: perSecond(many, sealMs),
    verified_per_second: perSecond(many, verifyMs),
    faults: found.violationCount,
  })}\n`,
);
await server.stop();
for (const service of [keys, registry]) await service.stop();
await db.close();
await embedded?.stop();

async function until(condition: () => boolean): Promise<void> {
  while (!condition()) await new Promise((resolve) => setTimeout(resolve, 10));
}
