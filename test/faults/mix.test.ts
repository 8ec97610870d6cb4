// Several daemons under load while processes, connections, the database and clocks fail, and people interfere, at
// random. For some seconds in `npm test`; `npm run test:faults` runs it for minutes, with a server and a standby of its own.
import { test } from 'vitest';
import { useTenant } from '../support/postgres/database.ts';
import { createPrivateWorld, createSharedWorld } from './create-world.ts';
import { startRemoteWorker } from './load/remote-worker.ts';
import { setLimits } from './load/waits.ts';
import { finishRun, runMix, runOptions } from './run.ts';
import { describeRun } from './summary.ts';

const context = useTenant();
const { minutes, seed } = runOptions();
const runMs = minutes > 0 ? minutes * 60_000 : 5_000;
const names = minutes > 0 ? ['one', 'two', 'three'] : ['one', 'two'];

test(
  'mix: whatever happens to processes, connections and servers, every acknowledged job ends once and in order',
  async () => {
    console.log(`LEASEHOLD_TEST_SEED=${seed}`);
    const world = await (minutes > 0 ? createPrivateWorld(seed) : createSharedWorld(context, seed));
    await setLimits(world);
    await Promise.all(names.map((name) => world.addDaemon(name)));
    await world.follow();
    const worker = await startRemoteWorker(world);
    try {
      await runMix(world, runMs);
      await finishRun(world);
      console.log(describeRun(world.log, seed));
    } finally {
      await worker.stop();
    }
  },
  runMs + 300_000,
);
