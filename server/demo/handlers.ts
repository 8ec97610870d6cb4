// The sample handlers that a daemon runs if HANDLERS is not set.
import { fileURLToPath } from 'node:url';
import { z } from 'zod';
import { Fatal, Recoverable } from '../durable/handler-errors.ts';
import { isAddressLiteral, isPublicAddress, publicLookup } from '../webhooks/sender.ts';
import { defineJob, type JobDefinition } from '../worker/handlers/define-job.ts';
import type { JobContext } from '../worker/handlers/job-context.ts';

/** Asks a person, and returns the decision. */
const approval = defineJob({
  type: 'demo.approval',
  payload: z.object({
    question: z.string().max(500).default('Deploy version 1.4 to production?'),
    assignees: z.array(z.string()).max(10).default([]),
  }),
  async run({ payload, ask, job }) {
    const { action, note } = await ask({
      title: payload.question,
      context: { requested_by: job.author ?? 'somebody', job: job.id },
      schema: z.object({ note: z.string().max(500).optional().describe('Shown in the history of the job.') }),
      actions: [
        { name: 'approve', label: 'Approve', style: 'primary' },
        { name: 'reject', label: 'Reject', style: 'danger' },
      ],
      assignees: payload.assignees,
    });
    return { approved: action === 'approve', note: note ?? null };
  },
});

/** Returns its payload. */
const echo = defineJob({
  type: 'demo.echo',
  run: (context) => context.payload,
});

/** Takes `seconds`, reports progress, and stops when it is paused or canceled. */
const sleep = defineJob({
  type: 'demo.sleep',
  payload: z.object({ seconds: z.number().min(0).max(86_400).default(10) }),
  async run({ payload, progress, sleep }) {
    // At most ten reports, at least one a second for short jobs.
    const steps = Math.max(1, Math.min(10, Math.ceil(payload.seconds)));
    for (let step = 1; step <= steps; step++) {
      await sleep((payload.seconds * 1000) / steps);
      progress((step * 100) / steps, `slept ${((payload.seconds * step) / steps).toFixed(1)} s`);
    }
    return { slept: payload.seconds };
  },
});

/** Fails the first `times` attempts, then succeeds. */
const fail = defineJob({
  type: 'demo.fail',
  payload: z.object({
    times: z.int().min(0).max(1000).default(1),
    recoverable: z.boolean().default(true),
  }),
  retry: { attempts: 3, kind: 'fixed', delaySeconds: 1 },
  run({ payload, job, log }) {
    if (job.attempt > payload.times) return { attempts: job.attempt };
    log.warn('failing as asked', { attempt: job.attempt, times: payload.times });
    const message = `failing on purpose, attempt ${job.attempt} of ${payload.times}`;
    throw payload.recoverable ? new Recoverable(message) : new Fatal(message);
  },
});

/** Reports `tokens` in ten parts; above the job's limit it is stopped. */
const tokens = defineJob({
  type: 'demo.tokens',
  payload: z.object({ tokens: z.int().min(0).max(1_000_000_000).default(1000) }),
  async run({ payload, addUsage, progress, sleep }) {
    const part = Math.ceil(payload.tokens / 10);
    let used = 0;
    for (let step = 1; used < payload.tokens; step++) {
      const now = Math.min(part, payload.tokens - used);
      await addUsage({ tokens: now });
      used += now;
      progress(step * 10, `${used} tokens`);
      await sleep(50);
    }
    return { used };
  },
});

/** Computes without a pause: in a thread it blocks no other job, and can still be paused or canceled. */
const compute = defineJob({
  type: 'demo.compute',
  isolation: 'thread',
  payload: z.object({ limit: z.int().min(2).max(50_000_000).default(2_000_000) }),
  run({ payload }) {
    const composite = new Uint8Array(payload.limit + 1);
    let primes = 0;
    for (let n = 2; n <= payload.limit; n++) {
      if (composite[n] === 1) continue;
      primes += 1;
      for (let multiple = n * n; multiple <= payload.limit; multiple += n) composite[multiple] = 1;
    }
    return { primes };
  },
});

/** Three phases that report progress: the sample to pause, resume and cancel. */
const pipeline = defineJob({
  type: 'demo.pipeline',
  payload: z.object({
    items: z.int().min(1).max(10_000).default(30),
    seconds: z.number().min(0).max(3600).default(3).describe('How long the whole pipeline takes.'),
  }),
  phases: [
    {
      name: 'download',
      run: async (context) => {
        await spread(context, context.payload.seconds / 3);
        return { items: context.payload.items };
      },
    },
    {
      name: 'process',
      run: async (context) => {
        await spread(context, context.payload.seconds / 3);
        const items = context.phaseResult('download')?.items ?? 0;
        return { processed: items, checksum: items * 7 };
      },
    },
    {
      name: 'upload',
      run: async (context) => {
        await spread(context, context.payload.seconds / 3);
        await context.lease.assert();
        return { uploaded: context.phaseResult('process')?.processed ?? 0, fence: context.lease.fence };
      },
    },
  ],
});

/** Ten equal steps, each of which can be interrupted. */
async function spread(context: Pick<JobContext, 'sleep' | 'progress'>, seconds: number): Promise<void> {
  for (let step = 1; step <= 10; step++) {
    await context.sleep(seconds * 100);
    context.progress(step * 10, `step ${step} of 10`);
  }
}

/**
 * A sample of an HTTP call: the signal aborts the request, a busy server is retried, and the fence is sent as a header
 * so that the receiver can refuse a stale caller.
 */
const httpCall = defineJob({
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
    // Every tenant may run this sample, so it must not reach private addresses.
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
 * Reads a response to its end without keeping it: an endless or very large one must take neither the daemon's memory
 * nor the handler's time.
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

// The module from which a thread loads a handler with `isolation: 'thread'`. It exports each definition once.
const file = fileURLToPath(import.meta.url);

export const demoHandlers: readonly JobDefinition[] = [
  echo,
  sleep,
  fail,
  tokens,
  pipeline,
  compute,
  approval,
  httpCall,
].map((definition) => ({ ...definition, file }));
