// A handler ignores that it was asked to stop. The next job of its lane begins when it has really ended.
import { expect } from 'vitest';
import { eventually } from '../../support/eventually.ts';
import type { Scenario } from './scenario.ts';

export const deafHandler: Scenario = {
  name: 'a8',
  title: 'a handler that ignores its signal is fenced off, and nothing of its target runs beside it',
  async run(world) {
    await world.addDaemon('one');
    await world.addDaemon('two');
    const gate = world.gate('ends');
    const { job = '' } = await world.enqueue({ type: 'stubborn', target: 'lane', payload: { until: gate.until } });
    const next = await world.enqueue({ target: 'lane' });
    await eventually(() => expect(world.effects('begin')).toHaveLength(1));
    expect((await world.act('cancel', job)).outcome).toBe('ok');
    const fenced = `select 1 from ${world.first.schema}.events where job_id = $1 and type = 'job.handler_unresponsive'`;
    // Or the next one has begun, which the checker reports.
    await eventually(async () => {
      const begun = world.effects('begin').length > 1;
      expect(begun || (await world.context.db.query(fenced, [job])).length === 1).toBe(true);
    });
    gate.open();
    await eventually(() => expect(world.effects('end').map((effect) => effect.job)).toContain(next.job));
  },
};
