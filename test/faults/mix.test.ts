// Several daemons under load while processes, connections, the database and clocks fail, and people interfere, at
// random. For some seconds in `npm test`; `npm run test:faults` runs it for minutes, with a server and a standby of its own.
import { test } from 'vitest';
import { useTenant } from '../support/postgres/database.ts';
import { createPrivateWorld, createSharedWorld } from './create-world.ts';
import { startRemoteWorker } from './load/remote-worker.ts';
import { startTicks } from './load/ticks.ts';
import { setLimits } from './load/waits.ts';
import { startWebhookReceiver } from './load/webhooks.ts';
import { finishRun, runMix, runOptions } from './run.ts';
import { describeRun } from './summary.ts';

const context = useTenant();
const { minutes, seed } = runOptions();
const runMs = minutes > 0 ? minutes * 60_000 : 5_000;
/** Every second seed of a run of minutes: statements run as the role of their tenant. */
const withRoles = minutes > 0 && seed % 2 === 0;
const names = minutes > 0 ? ['one', 'two', 'three'] : ['one', 'two'];

test(
  'mix: under any faults of processes, connections and servers, every acknowledged job ends once and in order',
  async () => {
    console.log(`LEASEHOLD_TEST_SEED=${seed}`);
    const world = await (minutes > 0 ? createPrivateWorld(seed) : createSharedWorld(context, seed));
    await setLimits(world);
    const env = { WEBHOOK_ALLOW_PRIVATE: 'true', ...(withRoles && { TENANT_ROLES: 'true' }) };
    await Promise.all(names.map((name) => world.addDaemon(name, { env })));
    await world.follow();
    const receiver = await startWebhookReceiver(world);
    world.webhookUrl = receiver.url;
    const worker = await startRemoteWorker(world);
    try {
      await startTicks(world);
      await runMix(world, runMs);
      await finishRun(world);
      console.log(describeRun(world.log, seed));
    } finally {
      await worker.stop();
      receiver.stop();
    }
  },
  // Only a run that hangs reaches it.
  runMs + 1_800_000,
);
