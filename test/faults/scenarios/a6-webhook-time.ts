// A daemon whose clock is ten minutes off sends webhooks. Receivers refuse timestamps that are minutes off, so they must
// come from the database. The checker compares the time of each webhook with the time at which it was received.
import { expect } from 'vitest';
import { eventually } from '../../support/eventually.ts';
import { startWebhookReceiver } from '../load/webhooks.ts';
import type { Scenario } from './scenario.ts';

export const webhookTime: Scenario = {
  name: 'a6',
  title: 'webhooks of a daemon whose clock is wrong carry the time of the database',
  async run(world) {
    const receiver = await startWebhookReceiver(world);
    try {
      await world.addDaemon('shifted', { clockShiftMs: 600_000, env: { WEBHOOK_ALLOW_PRIVATE: 'true' } });
      const { outcome } = await world.enqueue({ webhookUrl: receiver.url });
      expect(outcome).toBe('ok');
      await eventually(() => expect(world.log.read('webhooks.jsonl')).not.toEqual([]));
    } finally {
      receiver.stop();
    }
  },
};
