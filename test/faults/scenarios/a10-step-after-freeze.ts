// A daemon freezes while the answer that its durable step waits for is in its socket. When it continues, another daemon
// has run the job: the step must not begin.
import { expect } from 'vitest';
import { eventually } from '../../support/eventually.ts';
import type { Scenario } from './scenario.ts';

const loadText = /order by p\.position/;

export const stepAfterFreeze: Scenario = {
  name: 'a10',
  title: 'a durable step does not begin after a freeze that outlived its lease',
  async run(world) {
    const frozen = await world.addDaemon('frozen', { env: { LEASE_SECONDS: '2' } });
    frozen.proxy.treat(loadText, 'holdAnswer');
    await world.enqueue({ type: 'durable', target: 'one', payload: { ms: 0 }, maxAttempts: 5 });
    await eventually(() => expect(frozen.proxy.treated.holdAnswer).toBe(1));
    frozen.signal('SIGSTOP');
    await frozen.proxy.deliver();
    const other = await world.addDaemon('other', { env: { LEASE_SECONDS: '30' } });
    const steps = () => world.effects('step').map(({ pid }) => pid);
    await eventually(() => expect(steps()).toEqual([other.process.child.pid, other.process.child.pid]));
    frozen.signal('SIGCONT');
    // It has handled what lay in its sockets when it is ready again.
    await frozen.process.ready();
    expect(steps()).toEqual([other.process.child.pid, other.process.child.pid]);
  },
};
