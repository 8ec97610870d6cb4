// A daemon is cut off in the middle of a transaction that has locked lanes. Enqueues to these and to other lanes through
// a healthy daemon are acknowledged.
import { expect } from 'vitest';
import { eventually } from '../../support/eventually.ts';
import type { Scenario } from './scenario.ts';

/** Takes the numbers of lanes, and with them their locks. */
const lockText = /set lane_seq = t\.lane_seq \+ w\.count/;

export const frozenInTransaction: Scenario = {
  name: 'a2',
  title: 'a daemon frozen in mid-transaction stops no tenant on a healthy daemon',
  async run(world) {
    const frozen = await world.addDaemon('frozen', { env: { WORKER_CONCURRENCY: '0' } });
    const healthy = await world.addDaemon('healthy');
    const lanes = ['contested', 'other'];
    for (const target of lanes) await world.enqueue({ target }, { daemon: healthy });
    frozen.proxy.treat(lockText, 'holdAnswer');
    const lost = world.enqueue({ target: 'contested', key: 'lost' }, { daemon: frozen });
    await eventually(() => expect(frozen.proxy.treated.holdAnswer).toBe(1));
    frozen.signal('SIGSTOP');
    const answers = await Promise.all(
      ['other', 'contested', 'new', 'contested', 'other'].map((target) =>
        world.enqueue({ target }, { daemon: healthy }),
      ),
    );
    expect(answers.map(({ outcome }) => outcome)).toEqual(answers.map(() => 'ok'));
    await frozen.proxy.deliver();
    frozen.signal('SIGCONT');
    await lost;
    await eventually(async () => {
      const again = await world.enqueue({ target: 'contested', key: 'lost' }, { daemon: frozen });
      expect(again.outcome).toBe('ok');
    });
  },
};
