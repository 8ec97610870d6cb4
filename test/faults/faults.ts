// The faults that a mix draws from. Each begins, lasts for a while and is taken back; most hit one daemon.
import pg from 'pg';
import { eventually } from '../support/eventually.ts';
import type { TestDaemon } from './daemons.ts';
import type { World } from './world.ts';

export interface Fault {
  name: string;
  /** It needs a database server of the run's own. */
  needsServer?: boolean;
  inject(world: World): Promise<void>;
}

/** Writes: statements that the server would refuse with a full disk. */
const writes = /\b(insert into|update|delete from)\b/i;
const commits = /^\s*commit\b/i;
/** A claim outside of a transaction: it commits by itself. */
const claims = /found as materialized/;
const leaseMs = 4_000;

function onDaemon(name: string, inject: (daemon: TestDaemon, world: World) => Promise<void>): Fault {
  return {
    name,
    inject: async (world) => {
      const daemon = world.anyDaemon();
      world.note(name, { daemon: daemon.name });
      await inject(daemon, world);
    },
  };
}

function onServer(name: string, inject: (world: World) => Promise<void>): Fault {
  return {
    name,
    needsServer: true,
    inject: async (world) => {
      world.note(name);
      await inject(world);
    },
  };
}

export const faults: readonly Fault[] = [
  onDaemon('kill', async (daemon) => {
    await daemon.end('SIGKILL');
    await daemon.start();
  }),
  onDaemon('restart', async (daemon) => {
    await daemon.end('SIGTERM');
    await daemon.start();
  }),
  onDaemon('second SIGTERM', async (daemon, world) => {
    daemon.signal('SIGTERM');
    await world.pause(world.choices.between(0, 500));
    await daemon.end('SIGTERM');
    await daemon.start();
  }),
  onDaemon('kill during drain', async (daemon, world) => {
    daemon.signal('SIGTERM');
    await world.pause(world.choices.between(0, 500));
    await daemon.end('SIGKILL');
    await daemon.start();
  }),
  onDaemon('shifted clock', async (daemon, world) => {
    await daemon.end('SIGTERM');
    daemon.clockShiftMs = world.choices.pick([-600_000, 0, 600_000]);
    await daemon.start();
  }),
  onDaemon('freeze', async (daemon, world) => {
    daemon.signal('SIGSTOP');
    await world.pause(world.choices.pick([1_000, leaseMs + 2_000]));
    daemon.signal('SIGCONT');
  }),
  onDaemon('cut', async (daemon) => {
    for (const proxy of daemon.proxies) proxy.cut();
  }),
  onDaemon('black hole', async (daemon, world) => {
    for (const proxy of daemon.proxies) proxy.blackHole();
    await world.pause(world.choices.pick([1_000, leaseMs + 2_000]));
    for (const proxy of daemon.proxies) await proxy.heal();
  }),
  onDaemon('slow link', async (daemon, world) => {
    for (const proxy of daemon.proxies) proxy.slow(world.choices.pick([20, 200]));
    await world.pause(2_000);
    for (const proxy of daemon.proxies) await proxy.heal();
  }),
  onDaemon('lost COMMIT', async (daemon, world) => {
    for (const proxy of daemon.proxies) proxy.treat(commits, 'dropAnswer', world.choices.between(1, 5));
    await world.pause(1_500);
    for (const proxy of daemon.proxies) await proxy.deliver();
  }),
  onDaemon('lost claim', async (daemon, world) => {
    for (const proxy of daemon.proxies) proxy.treat(claims, 'dropAnswer', world.choices.between(1, 3));
    await world.pause(1_500);
    for (const proxy of daemon.proxies) await proxy.deliver();
  }),
  onDaemon('late request', async (daemon, world) => {
    for (const proxy of daemon.proxies) proxy.treat(world.choices.pick([claims, commits, writes]), 'holdRequest');
    await world.pause(1_000);
    // The client gives up; the server gets the request afterwards.
    for (const proxy of daemon.proxies) proxy.cutClients();
    await world.pause(world.choices.pick([200, leaseMs]));
    for (const proxy of daemon.proxies) await proxy.deliver();
  }),
  onDaemon('late answer', async (daemon, world) => {
    for (const proxy of daemon.proxies) proxy.treat(world.choices.pick([claims, commits]), 'holdAnswer');
    await world.pause(world.choices.pick([1_000, leaseMs + 1_000]));
    for (const proxy of daemon.proxies) await proxy.deliver();
  }),
  onDaemon('full disk', (daemon, world) => refuseWrites(daemon, world, 'diskFull')),
  onDaemon('disk that fails', (daemon, world) => refuseWrites(daemon, world, 'diskFails')),
  onDaemon('read-only server', (daemon, world) => refuseWrites(daemon, world, 'readOnly')),
  onDaemon('conflicts', async (daemon, world) => {
    const treatment = world.choices.pick(['serializationFailure', 'deadlock'] as const);
    for (const proxy of daemon.proxies) proxy.treat(writes, treatment, world.choices.between(1, 10));
    await world.pause(1_000);
    for (const proxy of daemon.proxies) await proxy.deliver();
  }),
  {
    name: 'ended sessions',
    inject: async (world) => {
      world.note('ended sessions');
      await world.context.db.query(
        `select pg_terminate_backend(pid) from pg_stat_activity
          where datname = current_database() and application_name like 'leasehold%' and application_name <> 'leasehold-test'
            and pid <> pg_backend_pid() and random() < 0.5`,
      );
    },
  },
  {
    name: 'lost LISTEN',
    inject: async (world) => {
      world.note('lost LISTEN');
      await world.context.db.query(
        `select pg_terminate_backend(pid) from pg_stat_activity
          where datname = current_database() and query ilike 'listen%' and pid <> pg_backend_pid()`,
      );
    },
  },
  {
    name: 'long transaction',
    inject: async (world) => {
      world.note('long transaction');
      // The transaction has an id and a snapshot, which delay everything that depends on the oldest transaction. Other
      // work continues.
      await withForeignTransaction(world, 'select pg_current_xact_id()', world.choices.pick([2_000, 10_000]));
    },
  },
  {
    name: 'lane locked by another application',
    inject: async (world) => {
      world.note('lane locked by another application');
      const lock = `select 1 from ${world.first.schema}.targets where id = 'lane-0' for update`;
      // Also for longer than a statement of ours waits for a lock.
      await withForeignTransaction(world, lock, world.choices.pick([500, 7_000]));
    },
  },
  onServer('immediate restart of the server', async ({ primary }) => {
    await primary.halt();
    await primary.restart();
  }),
  onServer('only a standby', async (world) => {
    const { primary } = world;
    await primary.halt();
    await world.pause(world.choices.pick([1_000, leaseMs + 2_000]));
    await primary.restart();
  }),
  onServer('failover', async (world) => {
    await world.failOver();
    await eventually(() => world.context.db.query('select 1'), { everyMs: 100 });
    await world.addStandby();
  }),
  onServer('power loss', losePower),
];

/** Every daemon and the database server die at the same moment. Acknowledged requests are in the server's files. */
export async function losePower(world: World): Promise<void> {
  const { primary, daemons } = world;
  const ended = daemons.map((daemon) => daemon.end('SIGKILL'));
  await Promise.all([primary.halt(), ...ended]);
  await primary.restart();
  await Promise.all(daemons.map((daemon) => daemon.start()));
}

async function refuseWrites(
  daemon: TestDaemon,
  world: World,
  treatment: 'diskFull' | 'diskFails' | 'readOnly',
): Promise<void> {
  for (const proxy of daemon.proxies) proxy.treat(writes, treatment, 1_000);
  await world.pause(1_500);
  for (const proxy of daemon.proxies) await proxy.deliver();
}

/** A transaction of somebody else, which has run the statement and stays open for so long. */
async function withForeignTransaction(world: World, statement: string, ms: number): Promise<void> {
  const client = new pg.Client(world.primaryUrl);
  // Its server may crash meanwhile.
  client.on('error', () => {});
  try {
    await client.connect();
    await client.query('begin isolation level repeatable read');
    await client.query(statement);
    await world.pause(ms);
    await client.query('commit');
  } finally {
    await client.end();
  }
}
