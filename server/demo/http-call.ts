// A sample of an HTTP call: the signal aborts the request, a busy server is retried, and the fence is sent as a header so
// that the receiver can refuse a stale caller.
import { z } from 'zod';
import { isAddressLiteral, isPublicAddress, publicLookup } from '../webhooks/address.ts';
import { defineJob } from '../worker/handlers/define-job.ts';
import { Fatal, Recoverable } from '../worker/handlers/handler-errors.ts';

export const httpCall = defineJob({
  type: 'demo.http',
  payload: z.object({
    url: z.url({ protocol: /^https?$/ }).default('https://example.com/'),
    method: z.enum(['GET', 'POST']).default('GET'),
    body: z.json().optional(),
  }),
  retry: { attempts: 3, delaySeconds: 2 },
  timeoutSeconds: 60,
  async run({ payload, signal, lease, log }) {
    await lease.assert();
    const headers: Record<string, string> = { 'x-leasehold-fence': lease.fence };
    if (payload.body !== undefined) headers['content-type'] = 'application/json';
    // Every tenant may run this sample: it must not reach private addresses.
    const { hostname } = new URL(payload.url);
    if (isAddressLiteral(hostname) && !isPublicAddress(hostname)) {
      throw new Fatal('The address is not public', { code: 'ADDRESS_REFUSED' });
    }
    const { Agent, fetch } = await import('undici');
    const dispatcher = new Agent({ connect: { lookup: publicLookup() } });
    const response = await fetch(payload.url, {
      method: payload.method,
      headers,
      signal,
      dispatcher,
      redirect: 'manual',
      ...(payload.body !== undefined && payload.method === 'POST' && { body: JSON.stringify(payload.body) }),
    }).catch((error: unknown) => {
      if (signal.aborted) throw error;
      // Without its cause, which would reveal names and addresses in the network of this machine.
      throw new Recoverable('The server could not be reached', { code: 'UNREACHABLE' });
    });
    const bytes = await countBytes(response.body, maxAnswerBytes).catch((error: unknown) => {
      if (error instanceof TooManyBytes) throw new Fatal(error.message, { code: 'ANSWER_TOO_LARGE' });
      throw error;
    });
    log('answered', { status: response.status, bytes });
    if (response.status === 429 || response.status >= 500) {
      throw new Recoverable(`The server answered ${response.status}`, { code: 'SERVER_BUSY' });
    }
    if (!response.ok) throw new Fatal(`The server answered ${response.status}`, { code: 'SERVER_REFUSED' });
    return { status: response.status, bytes };
  },
});

// More than a sample needs.
const maxAnswerBytes = 10_485_760;

class TooManyBytes extends Error {
  override name = 'TooManyBytes';
}

/**
 * Reads a response to its end without keeping it: an endless or very large one must take neither the daemon's memory nor
 * the handler's time.
 * @internal Exported for its test.
 */
export async function countBytes(body: AsyncIterable<Uint8Array> | null, maxBytes: number): Promise<number> {
  if (body === null) return 0;
  let bytes = 0;
  for await (const chunk of body) {
    bytes += chunk.byteLength;
    // Leaving the loop cancels the body.
    if (bytes > maxBytes) throw new TooManyBytes(`The answer has more than ${maxBytes} bytes`);
  }
  return bytes;
}
