// A daemon is restarted under its name after its clock went back. It counts as live, so another daemon accepts jobs of
// the types that only it can run.
import { expect } from 'vitest';
import { eventually } from '../../support/eventually.ts';
import type { Scenario } from './scenario.ts';

export const clockWentBack: Scenario = {
  name: 'a7',
  title: 'a daemon that is restarted after its clock went back is live, and others accept its types',
  async run(world) {
    const moved = await world.addDaemon('moved', { clockShiftMs: 600_000 });
    // Without handlers of its own: it knows the type from the other daemon.
    const front = await world.addDaemon('front', { env: { HANDLERS: '' } });
    await moved.end('SIGKILL');
    moved.clockShiftMs = -600_000;
    await moved.start();
    await eventually(async () => expect((await world.enqueue({}, { daemon: front })).outcome).toBe('ok'));
    const state = `select state from (select case when last_beat_at < now() - interval '30 seconds' then 'lost' else 'alive' end as state
      from leasehold.daemons where id = 'moved') as d`;
    expect(await world.context.db.query(state)).toEqual([{ state: 'alive' }]);
  },
};
