// The answer to a claim arrives when its lease is over. Nothing starts under that lease, and nobody pays for it.
import { expect } from 'vitest';
import { eventually } from '../../support/eventually.ts';
import { claimText, type Scenario } from './scenario.ts';

export const lateClaimAnswer: Scenario = {
  name: 'a3',
  title: 'a claim that was answered after its lease: no handler starts under it, and no attempt is counted',
  async run(world) {
    const { context, first } = world;
    const daemon = await world.addDaemon('one', { env: { LEASE_SECONDS: '1' } });
    daemon.proxy.treat(claimText, 'holdAnswer');
    await world.addJobs(Array.from({ length: 30 }, (_, index) => ({ type: 'work', targetId: `t-${index}` })));
    await eventually(() => expect(daemon.proxy.treated.holdAnswer).toBe(1));
    const failed = `select 1 from ${first.schema}.jobs where error ->> 'code' = 'LEASE_EXPIRED' limit 1`;
    await eventually(async () => expect(await context.db.query(failed)).toHaveLength(1));
    await daemon.proxy.deliver();
  },
};
