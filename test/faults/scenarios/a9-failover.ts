// The primary fails, and a synchronous standby is promoted. Daemons follow, nothing acknowledged is lost; a daemon whose
// writes fail is not ready.
import { expect } from 'vitest';
import { eventually } from '../../support/eventually.ts';
import { actLikePeople, enqueueLoad, finishRemoteJobs } from '../load/load.ts';
import { startRemoteWorker } from '../load/remote-worker.ts';
import { setLimits } from '../load/waits.ts';
import type { Scenario } from './scenario.ts';

const writes = /\b(insert into|update|delete from)\b/i;

export const failover: Scenario = {
  name: 'a9',
  title: 'daemons follow the primary after a failover, and are not ready while writes fail',
  standby: true,
  async run(world) {
    await setLimits(world);
    const [one] = await Promise.all(['one', 'two'].map((name) => world.addDaemon(name)));
    await world.follow();
    const worker = await startRemoteWorker(world);
    let on = true;
    const load = Promise.all([enqueueLoad(world, () => on), actLikePeople(world, () => on)]);
    await eventually(() => expect(world.first.acknowledged.length).toBeGreaterThan(10));
    const before = world.first.acknowledged.length;
    await world.failOver();
    await eventually(() => expect(world.first.acknowledged.length).toBeGreaterThan(before + 10));
    on = false;
    await load;
    await finishRemoteJobs(world);
    await worker.stop();
    for (const proxy of one?.proxies ?? []) proxy.treat(writes, 'diskFull', Number.POSITIVE_INFINITY);
    await eventually(async () => expect(await one?.process.isReady()).toBe(false));
    for (const proxy of one?.proxies ?? []) await proxy.deliver();
    await eventually(async () => expect(await one?.process.isReady()).toBe(true));
  },
};
