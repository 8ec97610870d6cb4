import { describe, expect, it, onTestFinished } from 'vitest';
import { Database } from '../../../../../server/database/database.ts';
import { resumeJob } from '../../../../../server/jobs/actions/resume.ts';
import { runOperationsOnce } from '../../../../../server/jobs/actions/run-bulk-operations.ts';
import { createLogger } from '../../../../../server/kernel/logger.ts';
import { eventually } from '../../../../support/eventually.ts';
import { useControl } from '../../../../support/http/control.ts';
import { addJob, addJobs, claim, finish, reread } from '../../../../support/jobs.ts';
import { addTenant } from '../../../../support/postgres/database.ts';
import { startDatabaseProxy } from '../../../../support/postgres/proxies/database-proxy.ts';
import { createTasks } from '../../../../support/tasks.ts';

const control = useControl();
const runAll = async () => {
  while ((await runOperationsOnce(control.db, control.tenant)).more);
};
const begin = (action: string, filter: object, more: object = {}) =>
  control.post('/api/operations', { action, filter, author: 'ann', reason: 'flood', ...more });
const statusOf = async (job: { id: string }) => (await reread(control, job)).status;
const failing = { kind: 'fail', error: { code: 'X', message: 'x' } } as const;

describe('a bulk operation', () => {
  it('counts first, then cancels matching jobs, waiting or running, and no others', async () => {
    const [a, b, c] = await addJobs(control, [{ targetId: 'c1' }, { targetId: 'c1' }, { type: 'other' }]);
    await claim(control);
    const d = await addJob(control, {});
    const counted = await begin('cancel', { type: 'demo.echo' }, { dry_run: true });
    expect(counted.status).toBe(200);
    expect(counted.body).toEqual({ dry_run: true, action: 'cancel', matched: 3, not_eligible: [] });
    expect(await statusOf(d)).toBe('QUEUED');
    const begun = await begin('cancel', { type: 'demo.echo' });
    expect(begun.status).toBe(202);
    expect(begun.headers.get('location')).toBe(`/api/operations/${begun.body.id}`);
    expect(begun.body).toMatchObject({
      status: 'running',
      matched: 3,
      done: 0,
      progress: 0,
      filter: { type: 'demo.echo' },
    });
    const late = await addJob(control, {});
    await runAll();
    const read = await control.get(`/api/operations/${begun.body.id}`);
    expect(read.body).toMatchObject({ status: 'finished', matched: 3, done: 3, failed: 0, progress: 100 });
    expect(read.body.finished_at).not.toBeNull();
    expect(await statusOf(b!)).toBe('CANCELED');
    expect(await statusOf(d)).toBe('CANCELED');
    expect(await reread(control, a!)).toMatchObject({ status: 'RUNNING', cancelIntent: 'cancel' });
    expect(await statusOf(c!)).toBe('RUNNING');
    expect(await statusOf(late)).toBe('QUEUED');
    const [event] = await control.db.query(
      `select actor, data from ${control.schema}.events where job_id = $1 and type = 'job.canceled'`,
      [b?.id],
    );
    expect(event).toEqual({ actor: `operation:${begun.body.id}`, data: { author: 'ann', reason: 'flood' } });
  });

  it('names a thousand jobs; a page of such operations is limited in bytes and has a next one', async () => {
    const { tenant } = await addTenant(control.db, 'large_operations');
    await control.app.deps.registry.refresh();
    const key = await control.app.keyFor(tenant.id, ['read', 'control']);
    const begun: string[] = [];
    for (let n = 0; n < 15; n++) {
      const ids = Array.from({ length: 1000 }, () => crypto.randomUUID());
      const body = { action: 'cancel', filter: { ids } };
      begun.unshift((await control.app.request('POST', '/api/operations', { key, body })).body.id);
    }
    const page = async (more: string) =>
      (await control.app.request('GET', `/api/operations?limit=200${more}`, { key })).body;
    const first = await page('');
    const second = await page(`&cursor=${first.next_cursor}`);
    expect(first.operations.length).toBeLessThan(15);
    expect([...first.operations, ...second.operations].map(({ id }: { id: string }) => id)).toEqual(begun);
  });

  it.each(['readOnly', 'diskFull', 'diskFails', 'deadlock'] as const)(
    'passes over no job after an error: %s',
    async (treatment) => {
      const type = `passed-over.${treatment}`;
      const jobs = await addJobs(control, [{ type }, { type }, { type }]);
      const { body: operation } = await begin('cancel', { type });
      const { proxy, url } = await startDatabaseProxy(control);
      const db = new Database({ url, poolMax: 1, logger: createLogger('silent') });
      onTestFinished(() => db.close());
      // As often as a conflict is tried.
      proxy.treat(/set status = 'CANCELED'/, treatment, treatment === 'deadlock' ? 5 : 1);
      // Operations of other tests may come first.
      const runUntilRefused = async () => {
        for (let n = 0; n < 20; n++) await runOperationsOnce(db, control.tenant);
      };
      await expect(runUntilRefused()).rejects.toThrow();
      // As if the lock of the daemon that failed had run out.
      await control.db.query(`update ${control.schema}.operations set locked_until = null where id = $1`, [
        operation.id,
      ]);
      await runAll();
      for (const job of jobs) expect(await statusOf(job)).toBe('CANCELED');
      const { body } = await control.get(`/api/operations/${operation.id}`);
      expect(body).toMatchObject({ status: 'finished', done: 3, failed: 0 });
    },
  );

  it('retries failed jobs, and also resumes paused ones', async () => {
    const failed = await addJob(control, { type: 'retry.me' });
    const paused = await addJob(control, { type: 'retry.me' });
    for (const job of (await claim(control)).jobs) {
      if (job.id === failed.id) await finish(control, job, failing);
      if (job.id === paused.id) await finish(control, job, { kind: 'stopPaused', message: 'p' });
    }
    await begin('retry', { type: 'retry.me' });
    await runAll();
    expect([await statusOf(failed), await statusOf(paused)]).toEqual(['QUEUED', 'PAUSED']);
    await begin('resume', { type: 'retry.me' });
    await runAll();
    expect([await statusOf(failed), await statusOf(paused)]).toEqual(['QUEUED', 'QUEUED']);
  });

  it('keeps the order of a lane when it retries jobs that had left it', async () => {
    const given = { type: 'retry.order', targetId: 'order', onError: 'continue' } as const;
    const jobs = await addJobs(control, [given, given, given]);
    for (const _ of jobs) {
      const [job] = (await claim(control, { types: ['retry.order'] })).jobs;
      await finish(control, job!, failing);
    }
    await begin('retry', { type: 'retry.order' });
    await runAll();
    const started: string[] = [];
    for (const _ of jobs) {
      const [job] = (await claim(control, { types: ['retry.order'] })).jobs;
      started.push(job!.id);
      await finish(control, job!);
    }
    expect(started).toEqual(jobs.map((job) => job.id));
  });

  it('accepts the filters of the list: text, payload and parent', async () => {
    const parent = await addJob(control, { type: 'find.parent' });
    const [byText, byPayload, byParent, other] = await addJobs(control, [
      { type: 'find.Needle' },
      { type: 'find.x', payload: { customer: { id: 42 } } },
      { type: 'find.x', parentId: parent.id },
      { type: 'find.x', payload: { customer: { id: 7 } } },
    ]);
    for (const [filter, job] of [
      [{ search: 'needle' }, byText],
      [{ payload: 'customer.id=42' }, byPayload],
      [{ parent_id: parent.id }, byParent],
    ] as const) {
      expect((await begin('cancel', filter, { dry_run: true })).body.matched).toBe(1);
      const begun = await begin('cancel', filter);
      expect(begun.body.filter).toEqual(filter);
      await runAll();
      expect(await statusOf(job!)).toBe('CANCELED');
    }
    expect(await statusOf(other!)).toBe('QUEUED');
  });

  it('without matching jobs is finished at once', async () => {
    const begun = await begin('resume', { type: 'nobody', status: ['SUCCESS'] });
    expect(begun.body.matched).toBe(0);
    await runAll();
    expect((await control.get(`/api/operations/${begun.body.id}`)).body).toMatchObject({ status: 'finished', done: 0 });
  });

  it('continues in another daemon if the first one dies between batches', async () => {
    // Operations of other tests would be carried out first.
    await runAll();
    await addJobs(
      control,
      Array.from({ length: 130 }, (_, n) => ({ type: 'many', targetId: `many-${n % 3}` })),
    );
    const { id } = (await begin('cancel', { type: 'many' })).body;
    expect(await runOperationsOnce(control.db, control.tenant, { batches: 1 })).toEqual({ handled: 50, more: true });
    // The second one is taken and its daemon dies: nobody gives it back.
    await control.db.query(
      `update ${control.schema}.operations set locked_until = now() + interval '1 minute' where id = $1`,
      [id],
    );
    expect(await runOperationsOnce(control.db, control.tenant)).toEqual({ handled: 0, more: false });
    expect((await control.get(`/api/operations/${id}`)).body).toMatchObject({
      status: 'running',
      done: 50,
      progress: 38,
    });
    await control.db.query(
      `update ${control.schema}.operations set locked_until = now() - interval '1 second' where id = $1`,
      [id],
    );
    await runAll();
    expect((await control.get(`/api/operations/${id}`)).body).toMatchObject({
      status: 'finished',
      done: 130,
      failed: 0,
    });
    expect((await control.get('/api/jobs?type=many&status=QUEUED')).body.jobs).toEqual([]);
  });

  it('is run by one daemon at a time', async () => {
    await addJobs(
      control,
      Array.from({ length: 60 }, () => ({ type: 'twice' })),
    );
    const { id } = (await begin('cancel', { type: 'twice' })).body;
    await Promise.all([runOperationsOnce(control.db, control.tenant), runOperationsOnce(control.db, control.tenant)]);
    await runAll();
    expect((await control.get(`/api/operations/${id}`)).body).toMatchObject({ status: 'finished', done: 60 });
  });

  it('counts jobs that refuse the action, and continues', async () => {
    const jobs = await addJobs(control, [{ type: 'refuse' }, { type: 'refuse' }]);
    for (const job of (await claim(control)).jobs) if (job.type === 'refuse') await finish(control, job, failing);
    await resumeJob(control.db, control.schema, { jobId: jobs[0]!.id, actor: 'test' });
    const { id } = (await begin('resume', { type: 'refuse' })).body;
    // Stands for a job that cannot be changed, whatever the cause.
    await control.db.query(
      `alter table ${control.schema}.jobs add constraint refuse check (type <> 'refuse' or status <> 'QUEUED') not valid`,
    );
    await runAll();
    await control.db.query(`alter table ${control.schema}.jobs drop constraint refuse`);
    expect((await control.get(`/api/operations/${id}`)).body).toMatchObject({ status: 'finished', done: 0, failed: 1 });
  });

  it('is run in the background by any daemon', async () => {
    await addJobs(control, [{ type: 'background' }]);
    const { tasks } = createTasks(control.db, [control.tenant]);
    await tasks.operations.start();
    onTestFinished(() => tasks.operations.stop());
    const { id } = (await begin('cancel', { type: 'background' })).body;
    tasks.operations.wake(control.tenant.slug);
    await eventually(async () =>
      expect((await control.get(`/api/operations/${id}`)).body).toMatchObject({ status: 'finished', done: 1 }),
    );
  });

  it('is listed newest first, page by page', async () => {
    for (let n = 0; n < 3; n++) await begin('cancel', { type: 'nobody' });
    const all = (await control.get('/api/operations')).body.operations.map((o: { id: string }) => o.id);
    expect(all).toEqual([...all].sort().reverse());
    const first = await control.get('/api/operations?limit=2');
    const second = await control.get(`/api/operations?limit=200&cursor=${first.body.next_cursor}`);
    expect([...first.body.operations, ...second.body.operations].map((o) => o.id)).toEqual(all);
  });

  it('refuses unknown fields, and callers without the scope', async () => {
    expect((await begin('delete', {})).body.field).toBe('action');
    expect((await begin('cancel', { tpye: 'x' })).body.field).toBe('filter.tpye');
    expect((await control.post('/api/operations', { action: 'cancel' })).body.field).toBe('filter');
    const key = await control.app.keyFor(control.tenant.id, ['read', 'enqueue']);
    const body = { action: 'cancel', filter: {} };
    expect((await control.app.request('POST', '/api/operations', { key, body })).status).toBe(403);
    for (const id of ['x', '00000000-0000-7000-8000-000000000000']) {
      expect((await control.get(`/api/operations/${id}`)).status).toBe(404);
    }
  });
});
