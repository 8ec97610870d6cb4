// Jobs of the load that wait for something: for an event from outside, for an answer, for other jobs, for a place under a
// limit, for a higher budget; and those who send the events and answers.
import { updateTenantSettings } from '../../../server/tenants/tenant-store.ts';
import type { JobRequest, TestTenant, World } from '../world.ts';
import { operate } from './operations.ts';

/** Of jobs of the type `limited` that run at once. */
export const concurrencyLimit = 2;

/** Before the daemons start: they learn of a change one after the other. */
export async function setLimits(world: World): Promise<void> {
  const limits = { two: { type: 'limited', concurrency: concurrencyLimit } };
  for (const { tenant } of world.tenants) await updateTenantSettings(world.context.db, tenant.slug, { limits });
}

/** What the nth job of the load waits for; undefined for most. */
export function waitOf(world: World, n: number, tenant: TestTenant): JobRequest | undefined {
  const key = `${tenant.tenant.slug}-${n}`;
  switch (n % 20) {
    case 1:
      return { type: 'receiver', payload: { key } };
    case 5:
      return { type: 'asker', payload: {} };
    case 8:
      return { type: 'parent', payload: {} };
    case 11: {
      const after = tenant.acknowledged.at(-1);
      return after === undefined ? undefined : { after };
    }
    case 14:
    case 15:
    case 18: {
      // Without a lane: the limit is what they wait for.
      return { type: 'limited', target: undefined, payload: { ms: 300 } };
    }
    case 0:
      return { type: 'spender', payload: {}, budget: { points: 15 } };
    case 2:
      return { type: 'threaded', payload: { ms: world.choices.pick([0, 50, 300]) } };
    case 10:
    case 12: {
      const uniqueKey = world.choices.pick(['a', 'b']);
      return { type: 'unique', target: undefined, payload: { ms: 300, key: uniqueKey }, uniqueKey };
    }
    default:
      return undefined;
  }
}

/** Sends the event of a job until it was acknowledged: with its id it is received once. */
export async function sendEvent(world: World, tenant: TestTenant, key: string, id = key): Promise<boolean> {
  for (let attempt = 1; attempt <= 5; attempt++) {
    const { outcome } = await operate(world.log, {
      name: 'sendEvent',
      daemon: world.anyDaemon(),
      tenant: tenant.tenant.slug,
      apiKey: tenant.apiKey,
      method: 'POST',
      path: '/api/events/signal',
      body: { id, data: { key } },
      key: id,
    });
    if (outcome !== 'unknown') return outcome === 'ok';
    await world.pause(100);
  }
  return false;
}

/** Two people answer each open question at once, with different numbers; one of them by a link. Budgets are raised. */
export async function answerQuestions(world: World): Promise<void> {
  for (const tenant of world.tenants) {
    const open = await world.context.db
      .query<OpenQuestion>(
        `select q.id, q.job_id, j.type from ${tenant.schema}.questions q join ${tenant.schema}.jobs j on j.id = q.job_id
          where q.status = 'open'`,
      )
      .catch(() => []);
    for (const question of open) {
      if (question.type === 'asker') await answerTwice(world, tenant, question);
      else await send(world, tenant, question, { body: { action: 'Raise' } });
    }
  }
}

interface OpenQuestion {
  id: string;
  job_id: string;
  type: string;
}

async function answerTwice(world: World, tenant: TestTenant, question: OpenQuestion): Promise<void> {
  const { choices } = world;
  const [first, second] = [choices.between(1, 1_000_000), -choices.between(1, 1_000_000)];
  const path = choices.pick([true, false]) ? await makeLink(world, tenant, question) : undefined;
  await Promise.all([
    send(world, tenant, question, { number: first, body: { answer: { number: first } } }),
    path === undefined
      ? send(world, tenant, question, { number: second, body: { answer: { number: second } } })
      : send(world, tenant, question, { number: second, path, form: { number: String(second) } }),
  ]);
}

/** The path of the hosted form; undefined if that was not acknowledged. */
async function makeLink(world: World, tenant: TestTenant, { id }: OpenQuestion): Promise<string | undefined> {
  const { answer } = await operate(world.log, {
    name: 'make',
    kind: 'link',
    daemon: world.anyDaemon(),
    tenant: tenant.tenant.slug,
    apiKey: tenant.apiKey,
    method: 'POST',
    path: `/api/questions/${id}/links`,
    body: {},
    read: ({ id: link }) => ({ resource: link ?? '' }),
  });
  return answer?.url === undefined ? undefined : new URL(answer.url).pathname;
}

type GivenAnswer =
  | { number?: number; body: object; path?: undefined; form?: undefined }
  | { number: number; path: string; form: Record<string, string>; body?: undefined };

async function send(
  world: World,
  { tenant, apiKey }: TestTenant,
  { id, job_id: job }: OpenQuestion,
  { number, path = `/api/questions/${id}/answer`, body, form }: GivenAnswer,
): Promise<void> {
  await operate(world.log, {
    name: 'answer',
    daemon: world.anyDaemon(),
    tenant: tenant.slug,
    method: 'POST',
    path,
    ...(body === undefined ? { form } : { body, apiKey }),
    question: id,
    job,
    ...(number !== undefined && { number }),
  });
}

/**
 * After the faults: the event of a job whose enqueue was never acknowledged may have come before the job, or not at all.
 * It gets another one; those that are owed an event do not.
 */
export async function sendMissingEvents(world: World): Promise<void> {
  for (const tenant of world.tenants) {
    const { acknowledged } = tenant;
    const waiting = await world.context.db.query<{ id: string; key: string }>(
      `select id, payload ->> 'key' as key from ${tenant.schema}.jobs
        where type = 'receiver' and status = 'WAITING' and waiting ->> 'kind' = 'event'`,
    );
    for (const { id, key } of waiting) {
      if (!tenant.signaled.has(key) || !acknowledged.includes(id)) await sendEvent(world, tenant, key, `late-${id}`);
    }
  }
}
