// W15: many idle tenants and several daemons on one database. How many transactions a second the server counts while
// nothing happens, with each number of daemons, relative to one daemon in the same run; and the daemons' CPU time.
import { setTimeout as sleep } from 'node:timers/promises';
import pLimit from 'p-limit';
import { Database } from '../../../dist/database/database.js';
import { migrateControl } from '../../../dist/database/migrations/migrate.js';
import { createLogger } from '../../../dist/kernel/logger.js';
import { createTenant } from '../../../dist/tenants/create-tenant.js';
import { postgresCpuMs, postmasterOf, round } from '../rest/load.mjs';
import { dropEverything, startDaemon } from './daemons.mjs';

export const W15 = {
  title: 'idle tenants: transactions a second with the most daemons, relative to one',
  better: 'lower',
  options: { tenants: 1000, daemons: [1, 2, 8], settleSeconds: 100, seconds: 60 },
  async run({ url, options, calm, transactions }) {
    const db = new Database({ url, poolMax: 4, logger: createLogger('silent') });
    await dropEverything(db);
    await migrateControl(db, createLogger('silent'));
    const bounded = pLimit(4);
    await Promise.all(
      Array.from({ length: options.tenants }, (_, n) => bounded(() => createTenant(db, { slug: `w15_${n}` }))),
    );
    await db.close();
    const runs = [];
    for (const count of options.daemons) {
      await calm();
      const daemons = await Promise.all(Array.from({ length: count }, (_, n) => startDaemon(url, `d${n}`)));
      // The events of the new tenants are counted and sealed, and pools close idle connections.
      await sleep(options.settleSeconds * 1000);
      runs.push({ daemons: count, ...(await measureIdle(url, daemons, options.seconds, transactions)) });
      await Promise.all(daemons.map((daemon) => daemon.stop()));
    }
    for (const one of runs) one.ratio = round(one.perSecond / runs[0].perSecond);
    return { value: runs.at(-1).ratio, runs };
  },
};

async function measureIdle(url, daemons, seconds, transactions) {
  const postmaster = await postmasterOf(url);
  const usedMs = async () => {
    const reports = await Promise.all(daemons.map((daemon) => daemon.report()));
    return reports.reduce((sum, report) => sum + report.cpuMicroseconds, 0) / 1000;
  };
  const [daemonMs, postgresMs, before, start] = [
    await usedMs(),
    postgresCpuMs(postmaster),
    await transactions(),
    performance.now(),
  ];
  await sleep(seconds * 1000);
  const after = await transactions();
  const elapsed = (performance.now() - start) / 1000;
  const percent = (ms) => round(ms / elapsed / 10);
  return {
    // The last of the two counts is itself a transaction.
    perSecond: round(Math.max(0, after.count - before.count - 1) / elapsed),
    connections: after.connections,
    daemonCpuPercent: percent((await usedMs()) - daemonMs),
    postgresCpuPercent: percent(postgresCpuMs(postmaster) - postgresMs),
  };
}
