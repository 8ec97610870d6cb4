// The client's verbs against a real daemon.
import { describe, expect, it } from 'vitest';
import { LeaseholdClient } from '../../../server/client/client.ts';
import {
  ConnectionError,
  JobFailedError,
  ProblemError,
  WaitTimeoutError,
} from '../../../server/client/client-errors.ts';
import { jobRequest } from '../../../server/client/enqueue-requests.ts';
import { freePort } from '../../../server/embedded-postgres/cluster.ts';
import { defineJob, z } from '../../../server/index.ts';
import { scopes } from '../../../server/tenants/api-keys/key.ts';
import { createApiKey } from '../../../server/tenants/api-keys/key-store.ts';
import { fastSettings, useDaemon } from '../../support/daemon/daemon.ts';
import { eventually } from '../../support/eventually.ts';
import { addTenant, useDatabase } from '../../support/postgres/database.ts';

const context = useDatabase();

const double = defineJob({
  type: 'math.double',
  payload: z.object({ n: z.number() }),
  run: ({ payload, log }) => {
    log('doubling', { n: payload.n });
    return { doubled: payload.n * 2 };
  },
});

const failing = defineJob({
  type: 'always.fails',
  run: () => {
    throw new Error('no paper');
  },
});

const running = useDaemon(context, { handlers: [double, failing] });

/** A client of a new tenant. */
async function open(): Promise<{ client: LeaseholdClient }> {
  const { tenant } = await addTenant(context.db);
  const { text } = await createApiKey(context.db, { tenantId: tenant.id, name: 'client', scopes: [...scopes] });
  return { client: new LeaseholdClient({ url: `${running.daemon.url}/`, apiKey: text }) };
}

describe('jobs', () => {
  it('enqueues, waits, reads, lists, explains and logs', async () => {
    const { client } = await open();
    const handle = await client.enqueue(double, { n: 21 }, { targetId: 'machine/1', priority: 'HIGH', author: 'ann' });
    expect(handle).toMatchObject({ created: true, job: { target_id: 'machine/1', priority: 'HIGH', author: 'ann' } });
    const done = await client.jobs.wait(handle);
    expect(done).toMatchObject({ status: 'SUCCESS', result: { doubled: 42 } });
    expect((await client.jobs.get(handle.id)).result).toEqual({ doubled: 42 });
    const listed = [];
    for await (const job of client.jobs.list({ status: ['SUCCESS', 'PARTIAL'], targetId: 'machine/1' }))
      listed.push(job.id);
    expect(listed).toEqual([handle.id]);
    expect((await client.jobs.why(handle)).reasons[0]?.code).toBe('FINISHED');
    const lines = [];
    for await (const line of client.jobs.logs(handle)) lines.push(line.message);
    expect(lines).toEqual(['doubling']);
    const types = [];
    for await (const event of client.jobs.events(handle)) types.push(event.type);
    expect(types).toEqual(['job.enqueued', 'job.started', 'job.completed']);
  });

  it('lists page after page, up to the requested number', async () => {
    const { client } = await open();
    const requests = Array.from({ length: 7 }, (_, n) => jobRequest(double, { n }));
    const results = await client.enqueueMany(requests);
    expect(results.map((result) => result.ok && result.created)).toEqual(Array(7).fill(true));
    const ids = [];
    for await (const job of client.jobs.list({ limit: 3 })) ids.push(job.id);
    expect(ids.toSorted()).toEqual(results.map((result) => (result.ok ? result.id : '')).toSorted());
    expect(await client.jobs.list({ limit: 2 }).take(3)).toHaveLength(3);
  });

  it('reports a failure, and acts on it', async () => {
    const { client } = await open();
    const handle = await client.enqueue('always.fails', undefined, { targetId: 'm' });
    const failure = await client.jobs.wait(handle).catch((error: unknown) => error);
    expect(failure).toBeInstanceOf(JobFailedError);
    expect((failure as JobFailedError).job.error?.message).toBe('no paper');
    const behind = await client.enqueue(double, { n: 1 }, { targetId: 'm' });
    expect((await client.jobs.why(behind)).reasons[0]?.code).toBe('TARGET_HELD');
    expect(await client.holdCount()).toEqual({ paused: 0, error: 1, questions: 0, questions_of_holds: 0 });
    const waiting = client.jobs.wait<string>(handle.id, { onError: 'wait' });
    await client.jobs.resolve(handle, { result: 'by hand', reason: 'printed it', author: 'ann' });
    expect((await waiting).result).toBe('by hand');
    expect((await client.jobs.wait(behind)).result).toEqual({ doubled: 2 });
  });

  it('pauses, resumes, cancels and skips', async () => {
    const { client } = await open();
    const later = await client.enqueue(double, { n: 1 }, { runAt: new Date(Date.now() + 3_600_000) });
    expect((await client.jobs.pause(later)).status).toBe('PAUSED');
    expect((await client.jobs.resume(later)).status).toBe('QUEUED');
    const other = await client.enqueue(double, { n: 2 }, { runAt: '2100-01-01T00:00:00Z' });
    expect((await client.jobs.cancel(other, { reason: 'no need' })).status).toBe('CANCELED');
    await expect(client.jobs.wait(other)).rejects.toThrow(JobFailedError);
    const failed = await client.enqueue('always.fails', {}, { targetId: 'm' });
    await client.jobs.wait(failed).catch(() => undefined);
    await client.jobs.retry(failed);
    await client.jobs.wait(failed).catch(() => undefined);
    expect((await client.jobs.skip(failed)).status).toBe('CANCELED');
  });

  it('throws typed problems that name every field', async () => {
    const { client } = await open();
    const problem = (await client.enqueue('math.double', { n: 'x' }).catch((error: unknown) => error)) as ProblemError;
    expect(problem).toBeInstanceOf(ProblemError);
    expect(problem).toMatchObject({ status: 400, code: 'INVALID_FIELD', attempts: 1 });
    expect(problem.errors[0]?.field).toBe('payload.n');
    const unknown = (await client.enqueue('no.such.type', {}).catch((error: unknown) => error)) as ProblemError;
    expect(unknown.body.known_types).toContain('math.double');
    await expect(client.jobs.get('0199f3c2-8a51-7c1e-9d7e-3f0a5b1c2d3e')).rejects.toMatchObject({ code: 'NOT_FOUND' });
    const [good, bad] = await client.enqueueMany([jobRequest(double, { n: 1 }), jobRequest('no.such.type', {})]);
    expect(good.ok).toBe(true);
    expect(bad).toMatchObject({ ok: false, error: { code: 'UNKNOWN_JOB_TYPE' } });
    await expect(client.enqueueMany([jobRequest('no.such.type', {})], { atomic: true })).rejects.toThrow(ProblemError);
  });

  it('ends a wait by time or signal, and does not change the job', async () => {
    const { client } = await open();
    const later = await client.enqueue(double, { n: 1 }, { runAt: '2100-01-01T00:00:00Z' });
    await expect(client.jobs.wait(later, { waitMs: 50 })).rejects.toThrow(WaitTimeoutError);
    const abort = new AbortController();
    const waiting = client.jobs.wait(later, { signal: abort.signal });
    abort.abort(new Error('not needed any more'));
    await expect(waiting).rejects.toThrow('not needed any more');
    await expect(client.jobs.get(later, { signal: abort.signal })).rejects.toThrow('not needed any more');
    expect((await client.jobs.get(later)).status).toBe('PENDING');
  });

  it('waits for many jobs at once with few streams', async () => {
    const { client } = await open();
    const results = await client.enqueueMany(Array.from({ length: 30 }, (_, n) => jobRequest(double, { n })));
    const handles = results.flatMap((result) => (result.ok ? [result] : []));
    const jobs = await Promise.all(handles.map((handle) => client.jobs.wait(handle)));
    expect(jobs.map((job) => job.result.doubled)).toEqual(Array.from({ length: 30 }, (_, n) => n * 2));
  });
});

describe('targets, schedules, operations', () => {
  it('pauses and resumes targets, and labels them', async () => {
    const { client } = await open();
    await client.targets.setLabels('robot/7', { hall: 'north' });
    const until = new Date(Date.now() + 3_600_000);
    expect(await client.targets.pause('robot/7', { reason: 'oil', author: 'ann', until })).toMatchObject({
      paused: true,
      pause_reason: 'oil',
      paused_by: 'ann',
    });
    const job = await client.enqueue(double, { n: 4 }, { targetId: 'robot/7' });
    expect((await client.jobs.why(job)).reasons[0]?.code).toBe('TARGET_PAUSED');
    const paused = [];
    for await (const target of client.targets.list({ paused: true })) paused.push(target.id);
    expect(paused).toEqual(['robot/7']);
    await client.targets.resume('robot/7');
    await client.jobs.wait(job);
    expect((await client.targets.changeLabels('robot/7', { hall: null, row: '3' })).labels).toEqual({ row: '3' });
    expect((await client.targets.lanes({ search: 'robot' }).take(5)).map((lane) => lane.id)).toEqual(['robot/7']);
  });

  it('creates, changes, runs and deletes schedules', async () => {
    const { client } = await open();
    const job = {
      type: 'math.double',
      payload: { n: 1 },
      maxAttempts: 3,
      retry: { kind: 'fixed', delaySeconds: 5 },
    } as const;
    const schedule = await client.schedules.create({
      name: 'nightly',
      cron: '0 3 * * *',
      timezone: 'Europe/Berlin',
      job,
    });
    expect(schedule.job).toMatchObject({ max_attempts: 3, retry: { kind: 'fixed', delay_seconds: 5 } });
    expect((await client.schedules.update(schedule.id, { cron: '0 4 * * *' })).cron).toBe('0 4 * * *');
    expect((await client.schedules.pause(schedule.id)).paused).toBe(true);
    expect((await client.schedules.resume(schedule.id)).paused).toBe(false);
    const run = await client.schedules.run(schedule.id);
    expect((await client.jobs.wait(run.job)).result).toEqual({ doubled: 2 });
    expect(await client.schedules.preview('* * * * *')).toHaveLength(5);
    expect((await client.schedules.list().take(10)).map(({ name }) => name)).toEqual(['nightly']);
    await client.schedules.delete(schedule.id);
    await expect(client.schedules.get(schedule.id)).rejects.toMatchObject({ status: 404 });
  });

  it('counts before a bulk operation, and follows it', async () => {
    const { client } = await open();
    const runAt = '2100-01-01T00:00:00Z';
    await client.enqueueMany(Array.from({ length: 5 }, (_, n) => jobRequest(double, { n }, { runAt })));
    expect(await client.operations.preview('cancel', { type: 'math.double' })).toMatchObject({ matched: 5 });
    const { id } = await client.operations.start('cancel', { type: 'math.double' }, { author: 'ann', reason: 'flood' });
    expect(await client.operations.wait(id)).toMatchObject({ status: 'finished', done: 5, failed: 0 });
    expect(await client.jobs.list({ status: 'CANCELED' }).take(10)).toHaveLength(5);
    await eventually(async () => expect((await client.counts()).counts.CANCELED).toBe(5));
  });

  it('lists the daemons with an operator key', async () => {
    const operator = new LeaseholdClient({
      url: running.daemon.url,
      apiKey: async () => fastSettings.ADMIN_API_KEY as string,
    });
    expect((await operator.workers()).some(({ state }) => state === 'alive')).toBe(true);
    await expect(operator.jobs.get('x')).rejects.toMatchObject({ code: 'FORBIDDEN' });
  });
});

describe('a server that is not there', () => {
  it('is a connection error that says whether the request may have taken effect', async () => {
    const client = new LeaseholdClient({ url: `http://127.0.0.1:${await freePort()}`, apiKey: 'k', retryForMs: 0 });
    const error = await client.enqueue('x', {}).catch((caught: unknown) => caught);
    expect(error).toBeInstanceOf(ConnectionError);
    expect(error).toMatchObject({ mayHaveHappened: false, attempts: 1 });
    expect((error as Error).message).toMatch(/^The server cannot be reached, .*ECONNREFUSED/);
  });

  it('is not called if the options are invalid', () => {
    expect(() => new LeaseholdClient({ url: 'localhost', apiKey: 'k' })).toThrow(TypeError);
    expect(() => new LeaseholdClient({ url: 'http://x', apiKey: '' })).toThrow(TypeError);
  });
});
