// A worker that works: it counts for `payload.seconds`, and, if `payload.effects_url` is set, posts a
// sign of life there every 100 ms, as real work would leave traces outside. Run it:
//   LEASEHOLD_URL=http://127.0.0.1:8080 LEASEHOLD_KEY=lh_… LEASEHOLD_QUEUE=visuals npx tsx scripts/clients/example-worker.ts
// It is also the reference worker of `npm run conformance`.
import { pathToFileURL } from 'node:url';
import { LeaseholdWorker, type Work, type WorkerOptions } from '../../server/remote-worker/index.ts';

interface Payload {
  seconds?: number;
  effects_url?: string;
  /** Durable steps to make before a durable sleep, for `npm run conformance -- --durable`. */
  steps?: number;
  sleep_seconds?: number;
}

export async function work(attempt: Work): Promise<unknown> {
  return (attempt.job.payload as Payload | null)?.steps === undefined ? countSeconds(attempt) : makeSteps(attempt);
}

async function makeSteps({ job, leaseId, signal, step, sleepFor }: Work): Promise<unknown> {
  const { steps = 1, sleep_seconds = 1, effects_url = '' } = job.payload as Payload;
  const receipts: unknown[] = [];
  for (let n = 1; n <= steps; n++) {
    const name = `step-${n}`;
    receipts.push(
      await step(name, async () => {
        const answer = await leaveTrace(effects_url, { job_id: job.job_id, lease_id: leaseId, step: name }, signal);
        return ((await answer.json()) as { receipt: string }).receipt;
      }),
    );
  }
  await sleepFor(sleep_seconds * 1000);
  return { receipts };
}

export async function countSeconds({ job, leaseId, signal, report }: Work): Promise<unknown> {
  const { seconds = 1, effects_url } = (job.payload ?? {}) as Payload;
  const startedAt = performance.now();
  for (;;) {
    // Before every step that leaves a trace: a worker without its lease must leave none.
    signal.throwIfAborted();
    if (effects_url) await leaveTrace(effects_url, { job_id: job.job_id, lease_id: leaseId }, signal);
    const elapsed = (performance.now() - startedAt) / 1000;
    report(Math.min(1, elapsed / seconds), `${elapsed.toFixed(1)} of ${seconds} s`);
    if (elapsed >= seconds) return { counted: seconds };
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}

async function leaveTrace(url: string, trace: object, signal: AbortSignal): Promise<Response> {
  const headers = { 'content-type': 'application/json' };
  return fetch(url, { method: 'POST', headers, body: JSON.stringify(trace), signal });
}

export function optionsFromEnvironment(env: NodeJS.ProcessEnv): WorkerOptions {
  return {
    url: env.LEASEHOLD_URL ?? 'http://127.0.0.1:8080',
    key: env.LEASEHOLD_KEY ?? '',
    queue: env.LEASEHOLD_QUEUE ?? 'default',
    concurrency: Number(env.LEASEHOLD_CONCURRENCY ?? 1),
    ttlSeconds: Number(env.LEASEHOLD_TTL_SEC ?? 30),
    drainSeconds: Number(env.LEASEHOLD_DRAIN_SEC ?? 60),
    log: (message, fields) => process.stderr.write(`${JSON.stringify({ message, ...fields })}\n`),
  };
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) {
  const worker = new LeaseholdWorker(optionsFromEnvironment(process.env), work);
  for (const signal of ['SIGTERM', 'SIGINT'] as const) process.on(signal, () => worker.drain());
  await worker.run();
}
