// A daemon freezes while the answer of `lease.assert()` is in its socket. When it continues, another daemon runs the
// job: the answer is old, and the handler must not act on it.
import { expect } from 'vitest';
import { eventually } from '../../support/eventually.ts';
import type { Scenario } from './scenario.ts';

const assertText = /extract\(epoch from l\.expires_at - now\(\)\)/;

export const assertAfterFreeze: Scenario = {
  name: 'a5',
  title: 'lease.assert() does not trust an answer that lay in the socket during a freeze',
  async run(world) {
    const frozen = await world.addDaemon('frozen', { env: { LEASE_SECONDS: '2' } });
    const gate = world.gate('done');
    await world.enqueue({ type: 'asserting', target: 'one', payload: { until: gate.until }, maxAttempts: 5 });
    await eventually(() => expect(world.effects('step').length).toBeGreaterThan(0));
    const other = await world.addDaemon('other', { env: { LEASE_SECONDS: '30' } });
    frozen.proxy.treat(assertText, 'holdAnswer');
    await eventually(() => expect(frozen.proxy.treated.holdAnswer).toBe(1));
    frozen.signal('SIGSTOP');
    await frozen.proxy.deliver();
    const byOther = () => world.effects('step').filter(({ pid }) => pid === other.process.child.pid);
    await eventually(() => expect(byOther().length).toBeGreaterThan(0));
    frozen.signal('SIGCONT');
    // It has handled what lay in its sockets when it answers, and has had turns for more when it is ready again.
    await frozen.process.ready();
    const seen = byOther().length;
    await eventually(() => expect(byOther().length).toBeGreaterThan(seen + 5));
    gate.open();
  },
};
