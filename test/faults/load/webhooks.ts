// A receiver of webhooks in the process of the run, which refuses some deliveries, and logs those that it has accepted.
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { machineMs } from '../run-log.ts';
import type { World } from '../world.ts';

export interface ReceivedWebhook {
  job: string;
  /** The number of the event. */
  seq: string;
  type: string;
  /** Seconds since 1970, as the request says. */
  sentAt: number;
  /** The same by the clock of this process. */
  receivedAt: number;
  at: number;
}

interface WebhookReceiver {
  url: string;
  stop(): void;
}

/** Every so many requests is answered with 500. */
const refusedEvery = 7;

export async function startWebhookReceiver(world: World): Promise<WebhookReceiver> {
  let count = 0;
  const server = createServer(async (request, response) => {
    let text = '';
    for await (const chunk of request) text += String(chunk);
    count += 1;
    const isRefused = count % refusedEvery === 0;
    const { type, data } = JSON.parse(text) as { type: string; data: { job_id: string; event_id: string } };
    if (!isRefused) {
      world.log.append('webhooks.jsonl', {
        job: data.job_id,
        seq: data.event_id,
        type,
        sentAt: Number(request.headers['webhook-timestamp']),
        receivedAt: Date.now() / 1000,
        at: machineMs(),
      } satisfies ReceivedWebhook);
    }
    response.writeHead(isRefused ? 500 : 204).end();
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  return {
    url: `http://127.0.0.1:${port}/`,
    stop: () => {
      server.closeAllConnections();
      server.close();
    },
  };
}
