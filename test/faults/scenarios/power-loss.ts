// Every daemon and the database server die at the same moment, under load. What was acknowledged is there afterwards.
import { expect } from 'vitest';
import { eventually } from '../../support/eventually.ts';
import { losePower } from '../faults.ts';
import { cancelInBulk } from '../load/bulk.ts';
import { actLikePeople, enqueueLoad, finishRemoteJobs } from '../load/load.ts';
import { startRemoteWorker } from '../load/remote-worker.ts';
import { changeResources } from '../load/resources.ts';
import { setLimits } from '../load/waits.ts';
import type { Scenario } from './scenario.ts';

const rounds = 3;

export const powerLoss: Scenario = {
  name: 'power',
  title: 'everything acknowledged survives the death of every daemon and of the server at the same moment',
  standby: true,
  async run(world) {
    await setLimits(world);
    await Promise.all(['one', 'two'].map((name) => world.addDaemon(name)));
    await world.follow();
    const worker = await startRemoteWorker(world);
    let on = true;
    const parts = [enqueueLoad, actLikePeople, changeResources, cancelInBulk].map((part) => part(world, () => on));
    for (let round = 0; round < rounds; round++) {
      const before = world.first.acknowledged.length;
      await eventually(() => expect(world.first.acknowledged.length).toBeGreaterThan(before + 30));
      world.note('power loss');
      await losePower(world);
    }
    on = false;
    await Promise.all(parts);
    await finishRemoteJobs(world);
    await worker.stop();
  },
};
