// The faults that a mix draws from. Each begins, lasts for a while and is taken back; most hit one daemon.
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

export const faults: readonly Fault[] = [
  onDaemon('kill', async (daemon) => {
    await daemon.end('SIGKILL');
    await daemon.start();
  }),
  onDaemon('restart', async (daemon) => {
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
  onDaemon('full disk', async (daemon, world) => {
    for (const proxy of daemon.proxies) proxy.treat(writes, 'diskFull', 1_000);
    await world.pause(1_500);
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
    name: 'immediate restart of the server',
    needsServer: true,
    inject: async (world) => {
      if (world.isPromoted) return;
      world.note('immediate restart of the server');
      await world.server?.crash();
    },
  },
  {
    name: 'failover',
    needsServer: true,
    inject: async (world) => {
      if (world.standby === undefined || world.isPromoted) return;
      world.note('failover');
      await world.failOver();
      await eventually(() => world.context.db.query('select 1'), { everyMs: 100 });
    },
  },
];
