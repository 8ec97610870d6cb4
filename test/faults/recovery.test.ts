// `npm run test:faults -- --scenario recovery --rounds 20`: prints the recovery times of docs/guarantees.md.
import { test } from 'vitest';
import { useTenant } from '../support/postgres/database.ts';
import { createPrivateWorld, createSharedWorld } from './create-world.ts';
import {
  describeRecovery,
  measureCrash,
  measureFailover,
  measurePartition,
  productSettings,
  type Recovery,
} from './recovery.ts';
import { runOptions } from './run.ts';

const context = useTenant();
const isWanted = process.env.LEASEHOLD_TEST_SCENARIO === 'recovery';
const rounds = Number(process.env.LEASEHOLD_FAULTS_ROUNDS ?? 5);
const { seed } = runOptions();
const env = productSettings;
const print = (recovery: Recovery) => console.log(describeRecovery(recovery));

test.skipIf(!isWanted)(
  'recovery: crash and partition',
  async () => {
    const world = await createSharedWorld(context, seed);
    for (const name of ['one', 'two']) await world.addDaemon(name, { env });
    print(await measureCrash(world, rounds));
    print(await measurePartition(world, rounds));
  },
  rounds * 120_000,
);

test.skipIf(!isWanted)(
  'recovery: failover',
  async () => {
    const acknowledged: Recovery = { name: 'failover, until an enqueue is acknowledged', ms: [] };
    const begun: Recovery = { name: 'failover, until that job runs', ms: [] };
    for (let round = 0; round < rounds; round++) {
      const world = await createPrivateWorld(seed);
      await Promise.all(['one', 'two'].map((name) => world.addDaemon(name, { env })));
      const [first, second] = await measureFailover(world);
      acknowledged.ms.push(first);
      begun.ms.push(second);
      await Promise.all(world.daemons.map((daemon) => daemon.end('SIGKILL')));
    }
    print(acknowledged);
    print(begun);
  },
  rounds * 120_000,
);
