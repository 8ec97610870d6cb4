// Receives webhooks: checks the signature, ignores repetitions, answers within the time limit.
//   WEBHOOK_SECRET=whsec_… npx tsx receiver.ts
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { Webhook, WebhookVerificationError } from 'standardwebhooks';

interface JobEvent {
  type: string;
  timestamp: string;
  data: { tenant: string; event_id: string; job_id: string; job_type: string; status: string; error?: unknown };
}

const webhook = new Webhook(process.env.WEBHOOK_SECRET ?? '');
// Deliveries are at least once. In production keep the ids in your database, in the transaction that handles the event.
const handled = new Set<string>();

const server = createServer(async (request, response) => {
  const chunks: Buffer[] = [];
  for await (const chunk of request) chunks.push(chunk as Buffer);
  const id = String(request.headers['webhook-id']);
  try {
    // The bytes as they arrived: parsing first could change them.
    const event = webhook.verify(Buffer.concat(chunks), request.headers as Record<string, string>) as JobEvent;
    if (!handled.has(id)) {
      handle(event);
      handled.add(id);
    }
    response.writeHead(204).end();
  } catch (error) {
    // Anything but 2xx is sent again later.
    response.writeHead(error instanceof WebhookVerificationError ? 401 : 500).end();
  }
});

/** Do little here, or enqueue a job of your own: after ten seconds without an answer the event is sent again. */
function handle({ type, data }: JobEvent): void {
  console.log(`${type} ${data.job_id} ${data.status}`);
}

server.listen(Number(process.env.PORT ?? 4000), () => {
  console.log(`listening on port ${(server.address() as AddressInfo).port}`);
});
process.once('SIGTERM', () => server.close());
