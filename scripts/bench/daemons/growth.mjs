// `npm run bench -- growth`: a steady load for minutes with retention on. One daemon, as a process of its own; jobs are
// enqueued at a fixed rate, finished jobs become stale after a minute and are deleted, events go after five. Prints for
// each minute the jobs that ended, CPU time per job, sizes of tables and indexes, dead rows and how far followers are behind.
//
// Options: {"minutes":20,"share":0.5}: the share of what the daemon can drain; {"perSecond":500} instead of a share;
// {"out":"docs/performance/growth.json"} keeps the result.
import { writeFileSync } from 'node:fs';
import { cpus, loadavg } from 'node:os';
import { setTimeout as delay } from 'node:timers/promises';
import { Database } from '../../../dist/database/database.js';
import { migrateControl } from '../../../dist/database/migrations/migrate.js';
import { parsePosition } from '../../../dist/events/log/position.js';
import { enqueue } from '../../../dist/jobs/enqueue/enqueue.js';
import { createLogger } from '../../../dist/kernel/logger.js';
import { createTenant } from '../../../dist/tenants/create-tenant.js';
import { postgresCpuMs, postmasterOf, round } from '../rest/load.mjs';
import { dropEverything, startDaemon } from './daemons.mjs';

const tables = ['jobs', 'events', 'event_seals', 'leases'];
const tickMs = 100;
const batch = 500;

export const growth = {
  title: 'growth: jobs a second in the last minute, relative to the first',
  better: 'higher',
  options: { minutes: 20, share: 0.5, perSecond: undefined, out: undefined },
  async run({ url, options, calm }) {
    const db = new Database({ url, poolMax: 4, logger: createLogger('silent') });
    await dropEverything(db);
    await migrateControl(db);
    const { tenant } = await createTenant(db, { slug: 'growth' });
    await calm();
    const daemon = await startDaemon(url, 'growth', {
      RETENTION_STALE_AFTER_SECONDS: '60',
      RETENTION_DELETE_AFTER_SECONDS: '60',
      BENCH_EVENT_SECONDS: '300',
    });
    const load = new Load(db, tenant.schema);
    const perSecond = options.perSecond ?? Math.round(options.share * (await load.measureRate(daemon)));
    const minutes = await measureMinutes({ db, url, tenant, daemon, load, perSecond, count: options.minutes });
    await daemon.stop();
    await db.close();
    const [first, last] = [minutes[0], minutes.at(-1)];
    const result = {
      value: round(last.endedPerSecond / first.endedPerSecond),
      cores: cpus().length,
      perSecond,
      staleAfterSeconds: 60,
      eventSeconds: 300,
      minutes,
    };
    if (options.out !== undefined) writeFileSync(options.out, `${JSON.stringify(result, null, 1)}\n`);
    return result;
  },
};

async function measureMinutes({ db, url, tenant, daemon, load, perSecond, count }) {
  const postmaster = await postmasterOf(url);
  const minutes = [];
  load.start(perSecond);
  const take = async () => ({
    ...(await daemon.report()),
    postgresMs: postgresCpuMs(postmaster),
    at: performance.now(),
  });
  let before = await take();
  const startedAt = before.at;
  for (let minute = 1; minute <= count; minute++) {
    await delay(Math.max(0, startedAt + minute * 60_000 - performance.now()));
    const now = await take();
    const ended = now.ended - before.ended;
    minutes.push({
      minute,
      endedPerSecond: round((1000 * ended) / (now.at - before.at), 0),
      load: round(loadavg()[0], 1),
      daemonCpuMicroseconds: round((now.cpuMicroseconds - before.cpuMicroseconds) / ended, 1),
      postgresCpuMicroseconds: round((1000 * (now.postgresMs - before.postgresMs)) / ended, 1),
      waiting: load.enqueued - now.ended,
      ...(await sizes(db, tenant.schema)),
      behindSeconds: await followersBehind(db, tenant.schema),
    });
    before = now;
    process.stderr.write(`${JSON.stringify(minutes.at(-1))}\n`);
  }
  await load.stop();
  return minutes;
}

/** Enqueues at a fixed rate, however long each call takes. */
class Load {
  enqueued = 0;
  #db;
  #schema;
  #timer;
  #calls = new Set();

  constructor(db, schema) {
    this.#db = db;
    this.#schema = schema;
  }

  /** How many jobs a second the daemon can take, with their enqueues. */
  async measureRate(daemon) {
    const jobs = 20_000;
    const start = performance.now();
    for (let i = 0; i < jobs; i += batch) await this.#enqueue(batch);
    while ((await daemon.report()).ended < jobs) await delay(20);
    return jobs / ((performance.now() - start) / 1000);
  }

  start(perSecond) {
    const startedAt = performance.now();
    let asked = 0;
    this.#timer = setInterval(() => {
      const due = Math.floor(((performance.now() - startedAt) / 1000) * perSecond);
      // What a slow database does not take is not added on top of what it has to do.
      if (this.#calls.size >= 4) return;
      const count = Math.min(due - asked, perSecond);
      asked = due;
      if (count <= 0) return;
      const call = this.#enqueue(count).finally(() => this.#calls.delete(call));
      this.#calls.add(call);
    }, tickMs);
  }

  async stop() {
    clearInterval(this.#timer);
    await Promise.all(this.#calls);
  }

  async #enqueue(count) {
    const jobs = Array.from({ length: count }, (_, i) => ({ type: 'noop', payload: { i } }));
    await enqueue(this.#db, this.#schema, jobs, 'bench');
    this.enqueued += count;
  }
}

async function sizes(db, schema) {
  const rows = await db.query(
    `select c.relname as name, pg_table_size(c.oid)::float8 as table, pg_indexes_size(c.oid)::float8 as indexes,
            s.n_live_tup::int as live, s.n_dead_tup::int as dead
       from pg_class c join pg_stat_user_tables s on s.relid = c.oid
      where c.relnamespace = $1::regnamespace and c.relname = any($2)`,
    [schema, tables],
  );
  const megabytes = (bytes) => round(bytes / 1024 / 1024, 1);
  const of = (read) => Object.fromEntries(rows.map((row) => [row.name, read(row)]));
  return {
    tableMb: of((row) => megabytes(row.table)),
    indexMb: of((row) => megabytes(row.indexes)),
    liveRows: of((row) => row.live),
    deadRows: of((row) => row.dead),
  };
}

/** The age of the first event that each follower has not read. */
async function followersBehind(db, schema) {
  const followers = await db.query(`select name, snapshot from ${schema}.followers order by name`);
  const behind = {};
  for (const { name, snapshot } of followers) {
    const { seen, page } = parsePosition(snapshot);
    // The last transaction that was read; of a page, its last event.
    const { xid, seq } = page ?? { xid: String(BigInt(seen.split(':')[1]) - 1n), seq: '9223372036854775807' };
    const [row] = await db.query(
      `select extract(epoch from now() - at)::float8 as seconds from ${schema}.events
        where (xid, seq) > ($1::text::xid8, $2::bigint) order by xid, seq limit 1`,
      [xid, seq],
    );
    behind[name] = round(row?.seconds ?? 0, 1);
  }
  return behind;
}
