// A daemon whose clock is ten minutes off sends webhooks. Receivers refuse timestamps that are minutes off, so they must
// come from the database.
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { expect } from 'vitest';
import { eventually } from '../../support/eventually.ts';
import type { Scenario } from './scenario.ts';

/** Receivers of Standard Webhooks allow five minutes. */
const toleranceSeconds = 300;

export const webhookTime: Scenario = {
  name: 'a6',
  title: 'webhooks of a daemon whose clock is wrong carry the time of the database',
  async run(world) {
    const times: number[] = [];
    const receiver = createServer((request, response) => {
      times.push(Number(request.headers['webhook-timestamp']));
      request.resume();
      response.writeHead(204).end();
    });
    receiver.listen(0, '127.0.0.1');
    await once(receiver, 'listening');
    try {
      await world.addDaemon('shifted', { clockShiftMs: 600_000, env: { WEBHOOK_ALLOW_PRIVATE: 'true' } });
      const { port } = receiver.address() as AddressInfo;
      const { outcome } = await world.enqueue({ webhookUrl: `http://127.0.0.1:${port}/` });
      expect(outcome).toBe('ok');
      await eventually(() => expect(times.length).toBeGreaterThan(0));
      for (const time of times) expect(Math.abs(time - Date.now() / 1000)).toBeLessThan(toleranceSeconds);
    } finally {
      receiver.closeAllConnections();
      receiver.close();
    }
  },
};
