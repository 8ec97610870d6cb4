// A remote worker in the mix: claims over HTTP from any daemon, makes durable calls, logs its effects, and repeats every
// release that was answered, at another daemon, as a client does whose answer was lost.
import { LeaseholdWorker, type Work } from '../../../server/remote-worker/index.ts';
import { updateTenantSettings } from '../../../server/tenants/tenant-store.ts';
import type { Effect } from '../../support/model/effects.ts';
import { machineMs } from '../run-log.ts';
import type { World } from '../world.ts';

export const remoteType = 'remote';
/** Two durable steps with a durable sleep between them. */
export const remoteDurableType = 'remote-durable';

/** Of one release. All of one lease must be answered in the same way. */
export interface ReleaseRecord {
  tenant: string;
  lease: string;
  daemon: string;
  status: number;
  answer: string;
  at: number;
}

export interface RemoteWorker {
  stop(): Promise<void>;
}

/** Before jobs of its type are enqueued. */
export async function startRemoteWorker(world: World): Promise<RemoteWorker> {
  const { tenant, apiKey } = world.first;
  await updateTenantSettings(world.context.db, tenant.slug, { remote_job_types: [remoteType, remoteDurableType] });
  const options = { url: 'http://any', key: apiKey, queue: remoteType, concurrency: 2, ttlSeconds: 4 };
  const worker = new LeaseholdWorker(
    { ...options, fetch: (input, init) => send(world, String(input), init) },
    (work) => (work.job.job_type === remoteDurableType ? runDurable(world, work) : runSteps(world, work)),
  );
  const done = worker.run();
  return {
    stop: async () => {
      worker.drain();
      await done;
    },
  };
}

function logEffect(world: World, { job, leaseId }: Work, kind: Effect['kind'], step?: string): void {
  world.log.append('effects.jsonl', {
    kind,
    target: (job.target_id ?? null) as string | null,
    job: job.job_id,
    // At the claim: how many were made before.
    attempt: job.attempts + 1,
    lease: leaseId,
    fence: leaseId,
    ...(step !== undefined && { step }),
    pid: process.pid,
    at: machineMs(),
  } satisfies Effect);
}

async function runSteps(world: World, work: Work): Promise<object> {
  logEffect(world, work, 'begin');
  for (let step = 0; step < 2; step++) {
    await world.pause(50);
    work.signal.throwIfAborted();
    logEffect(world, work, 'step');
  }
  logEffect(world, work, 'end');
  return { remote: true };
}

async function runDurable(world: World, work: Work): Promise<object> {
  const { ms = 0 } = work.job.payload as { ms?: number };
  logEffect(world, work, 'begin');
  await work.step('first', () => logEffect(world, work, 'step', 'first'));
  logEffect(world, work, 'wait');
  await work.sleepFor(ms);
  logEffect(world, work, 'begin');
  await work.step('second', () => logEffect(world, work, 'step', 'second'));
  logEffect(world, work, 'end');
  return { remote: true };
}

async function send(world: World, input: string, init: RequestInit | undefined): Promise<Response> {
  const path = new URL(input).pathname;
  const post = async () => {
    const daemon = world.anyDaemon();
    const response = await fetch(`${daemon.url}${path}`, init);
    const text = await response.text();
    const lease = /\/lease\/([^/]+)\/release$/.exec(path)?.[1];
    if (lease !== undefined && response.ok) {
      const { slug } = world.first.tenant;
      const record = { tenant: slug, lease, daemon: daemon.name, status: response.status, answer: text };
      world.log.append('releases.jsonl', { ...record, at: machineMs() } satisfies ReleaseRecord);
    }
    return { response, text, isRelease: lease !== undefined };
  };
  const { response, text, isRelease } = await post();
  if (isRelease && response.ok) await post().catch(() => {});
  return new Response(response.status === 204 ? null : text, { status: response.status });
}
