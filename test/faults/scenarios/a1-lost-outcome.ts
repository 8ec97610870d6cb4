// Two jobs of one claim. The connection hangs while the outcome of the first is sent, until nobody trusts the lease; the
// outcome of the second, the last of its lease, is written afterwards.
import { expect } from 'vitest';
import { eventually } from '../../support/eventually.ts';
import type { Scenario } from './scenario.ts';

export const lostOutcome: Scenario = {
  name: 'a1',
  title: 'an outcome is given up, and a later one of the same lease is written: no job stays RUNNING without a lease',
  async run(world) {
    const { context, first } = world;
    // One sweeper, which leaves time for the second outcome to be written first.
    const env = { LEASE_SECONDS: '2', STALE_LEASE_GRACE_SECONDS: '4' };
    const daemon = await world.addDaemon('one', { env });
    const gates = [world.gate('first'), world.gate('second')];
    await world.addJobs(
      gates.map(({ until }, index) => ({ type: 'work', targetId: `t-${index}`, maxAttempts: 2, payload: { until } })),
    );
    await eventually(() => expect(world.effects('begin')).toHaveLength(2));
    const [lease, ...others] = new Set(world.effects('begin').map((effect) => effect.lease));
    expect(others).toEqual([]);
    daemon.proxy.blackHole();
    gates[0]?.open();
    await eventually(() => expect(world.effects('end')).toHaveLength(1));
    gates[1]?.open();
    const isOver = `select 1 from ${first.schema}.leases where id = $1 and expires_at < now()`;
    await eventually(async () => expect(await context.db.query(isOver, [lease])).toHaveLength(1));
    await daemon.proxy.heal();
  },
};
