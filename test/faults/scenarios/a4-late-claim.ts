// A claim reaches the server after the daemon has given it up and released its lease. It must not take anything.
import { expect } from 'vitest';
import { eventually } from '../../support/eventually.ts';
import { claimText, type Scenario } from './scenario.ts';

export const lateClaim: Scenario = {
  name: 'a4',
  title: 'a claim that lands after it was given up takes no job',
  async run(world) {
    const daemon = await world.addDaemon('one', { env: { LEASE_SECONDS: '2', WORKER_CONCURRENCY: '4' } });
    daemon.proxy.treat(claimText, 'holdRequest');
    // More than can run before the claim lands, so that it would find some.
    await world.addJobs(Array.from({ length: 120 }, () => ({ type: 'work', payload: { ms: 100 } })));
    await eventually(() => expect(daemon.proxy.treated.holdRequest).toBe(1));
    daemon.proxy.cutClients();
    // The next claim of a daemon releases the lost one first.
    await eventually(() => expect(world.effects('end').length).toBeGreaterThan(0));
    await daemon.proxy.deliver();
  },
};
