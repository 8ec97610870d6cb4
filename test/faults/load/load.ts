// The requests of clients and people during a run: they enqueue work of several kinds, repeat requests, pause, resume
// and cancel, and release holds.

import { eventually } from '../../support/eventually.ts';
import type { JobRequest, TestTenant, World } from '../world.ts';
import { remoteDurableType, remoteType } from './remote-worker.ts';
import { answerQuestions, sendEvent, waitOf } from './waits.ts';

/** Lanes of the first tenant; jobs without a target are enqueued as well. */
const targets = ['lane-0', 'lane-1', 'lane-2', 'lane-3', 'lane-4', undefined];

export async function enqueueLoad(world: World, isOn: () => boolean): Promise<void> {
  const { choices, tenants } = world;
  const sent: Promise<unknown>[] = [];
  for (let n = 0; isOn(); n++) {
    const tenant = tenants[n % 10 === 9 ? 1 : 0] as TestTenant;
    const work = {
      payload: { ms: choices.pick([0, 50, 300]) },
      maxAttempts: 5,
      key: `${tenant.tenant.slug}-${n}`,
      ...(n % 4 === 1 && world.webhookUrl !== undefined && { webhookUrl: world.webhookUrl }),
    };
    const target = targets[n % targets.length];
    // A tenth waits in durable sleeps: short ones in the process, long ones without a slot.
    const durable = n % 10 === 3 && { type: 'durable', payload: { ms: choices.pick([100, 2_500]) } };
    // Another tenth is for the remote worker, half of it with durable calls.
    const remoteDurable = { type: remoteDurableType, payload: { ms: choices.pick([100, 2_500]) } };
    const remote = n % 10 === 6 && { queue: remoteType, ...(n % 20 === 6 ? { type: remoteType } : remoteDurable) };
    const request = sendJob(world, { target, ...work, ...durable, ...remote, ...waitOf(world, n, tenant) }, tenant);
    sent.push(request);
    // A daemon that is frozen answers later, or never: the others have work meanwhile.
    await Promise.race([request, world.pause(500)]);
    await world.pause(30);
  }
  await Promise.all(sent);
}

async function sendJob(world: World, job: JobRequest, tenant: TestTenant): Promise<void> {
  // What makes a second job of a key that is free again, and what waits for a job, is sent once.
  const { key = '', uniqueKey, ...rest } = job;
  if (uniqueKey !== undefined) return void (await world.enqueue({ ...rest, uniqueKey }, { tenant }));
  await enqueueUntilKnown(world, job, tenant);
  if (job.type === 'receiver' && (await sendEvent(world, tenant, key))) tenant.signaled.add(key);
}

/** As a careful client does: sends again, with the same key, until it knows. Sometimes also what was acknowledged. */
async function enqueueUntilKnown(world: World, job: JobRequest, tenant: TestTenant): Promise<void> {
  const again = world.choices.between(1, 20) === 1;
  for (let attempt = 1; attempt <= 3; attempt++) {
    const { outcome } = await world.enqueue(job, { tenant, daemon: world.anyDaemon() });
    if (outcome !== 'unknown' && !(again && attempt === 1)) return;
    await world.pause(100);
  }
}

export async function actLikePeople(world: World, isOn: () => boolean): Promise<void> {
  const { choices, first, tenants } = world;
  while (isOn()) {
    const job = first.acknowledged.at(-choices.between(1, 20));
    if (job !== undefined) {
      await world.act(choices.pick(['pause', 'cancel', 'resume']), job);
      await world.readForeign(job, tenants[1] as TestTenant);
    }
    await releaseHolds(world);
    await answerQuestions(world);
    await world.pause(150);
  }
}

/** A person resumes what was interrupted or has failed, and resolves what fails again and again. */
export async function releaseHolds(world: World): Promise<void> {
  for (const tenant of world.tenants) {
    const held = await world.context.db
      .query<{ id: string; attempt: number }>(
        `select id, attempt from ${tenant.schema}.jobs where status in ('PAUSED', 'ERROR')`,
      )
      // The server may be down for the moment.
      .catch(() => []);
    for (const { id, attempt } of held) await world.act(attempt > 3 ? 'resolve' : 'resume', id, { tenant });
  }
}

/** Before the remote worker stops: what only it can run has ended. It waits in lanes behind everything else. */
export async function finishRemoteJobs(world: World): Promise<void> {
  const waiting = `select id from ${world.first.schema}.jobs where remote and status not in ('SUCCESS', 'CANCELED')`;
  const areDone = async () => {
    await releaseHolds(world);
    if ((await world.context.db.query(waiting)).length > 0) throw new Error('remote jobs are left');
  };
  await eventually(areDone, { timeoutMs: 300_000, everyMs: 300 });
}
