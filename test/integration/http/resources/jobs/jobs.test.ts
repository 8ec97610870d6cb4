import { beforeAll, describe, expect, it } from 'vitest';
import { pauseJob } from '../../../../../server/jobs/actions/pause-and-cancel.ts';
import { renewStatement } from '../../../../../server/jobs/claim/lease.ts';
import type { Job } from '../../../../../server/jobs/model/job.ts';
import { useControl } from '../../../../support/http/control.ts';
import { addJob, claim, finish } from '../../../../support/jobs.ts';
import { addTenant } from '../../../../support/postgres/database.ts';

const control = useControl();
const jobs: Record<string, Job> = {};

beforeAll(async () => {
  const add = async (name: string, given: Parameters<typeof addJob>[1]) => {
    jobs[name] = await addJob(control, given);
  };
  await add('done', { targetId: 'a', type: 'mail' });
  await add('failed', { targetId: 'b', type: 'mail', priority: 'HIGH' });
  await add('running', { targetId: 'c' });
  for (const job of (await claim(control, { leaseSeconds: 3600 })).jobs) {
    if (job.id === jobs.done?.id) await finish(control, job);
    if (job.id === jobs.failed?.id) await finish(control, job, { kind: 'fail', error: { code: 'X', message: 'x' } });
  }
  await add('behindFailed', { targetId: 'b' });
  await add('paused', { queue: 'slow' });
  await pauseJob(control.db, control.schema, { jobId: jobs.paused?.id as string, actor: 'test' });
  await add('later', { runAt: '2199-01-01T00:00:00Z', queue: 'slow' });
  await add('free', { priority: 'LOW', payload: { big: 'x' } });
});

const names = (body: { jobs: { id: string }[] }) =>
  body.jobs.map((job) => Object.entries(jobs).find(([, known]) => known.id === job.id)?.[0] ?? '?');

describe('GET /api/jobs', () => {
  it.each([
    ['', ['free', 'later', 'paused', 'behindFailed', 'running', 'failed', 'done']],
    ['status=QUEUED', ['free', 'behindFailed']],
    ['status=PENDING', ['later']],
    ['status=RUNNING', ['running']],
    ['status=PAUSED,ERROR', ['paused', 'failed']],
    ['status=PAUSED&status=RUNNING', ['paused', 'running']],
    ['held=true', ['paused', 'failed']],
    ['held=true&status=ERROR,QUEUED', ['failed']],
    ['held=false&status=ERROR', []],
    ['status=SUCCESS', ['done']],
    ['status=SUCCESS,QUEUED', ['free', 'behindFailed', 'done']],
    ['type=mail', ['failed', 'done']],
    ['queue=slow', ['later', 'paused']],
    ['queue=slow&status=PENDING', ['later']],
    ['target_id=b', ['behindFailed', 'failed']],
    ['target_id=b&status=ERROR', ['failed']],
    ['priority=HIGH', ['failed']],
    ['priority=URGENT', []],
    ['created_after=2001-01-01T00:00:00Z&created_before=2002-01-01T00:00:00Z', []],
  ])('with %j lists the right jobs, newest first', async (query, expected) => {
    const answer = await control.get(`/api/jobs?${query}`);
    expect(answer.status).toBe(200);
    expect(names(answer.body)).toEqual(expected);
    expect(answer.body.next_cursor).toBeNull();
  });

  it('shows the holder of a job, its lease, and the last renewal', async () => {
    const { db, schema } = control;
    const path = `/api/jobs/${jobs.running?.id}`;
    const { body: before } = await control.get(path);
    const times = [before.lease_expires_at, before.heartbeat_at];
    expect([before.lease_owner, before.lease_id, ...times]).toEqual(['w1', ...Array(3).fill(expect.any(String))]);
    const { text, values } = renewStatement(schema, [before.lease_id], 3600);
    await db.query(text, values);
    const { body: after } = await control.get(path);
    expect(Date.parse(after.heartbeat_at)).toBeGreaterThan(Date.parse(before.heartbeat_at));
    const listed = (await control.get('/api/jobs?status=RUNNING,SUCCESS')).body.jobs;
    expect(listed[0]).toMatchObject({ heartbeat_at: after.heartbeat_at, lease_id: before.lease_id });
    expect(listed[1]).toMatchObject({ heartbeat_at: null, lease_expires_at: null, lease_owner: null });
  });

  it('compares times by the microsecond', async () => {
    const at = jobs.paused?.createdAt as string;
    expect(names((await control.get(`/api/jobs?created_after=${at}`)).body)).toEqual(['free', 'later']);
    expect(names((await control.get(`/api/jobs?created_before=${at}`)).body)).toEqual([
      'behindFailed',
      'running',
      'failed',
      'done',
    ]);
  });

  it.each(['', 'status=QUEUED,PENDING,PAUSED', 'type=demo.echo', 'status=PAUSED,ERROR'])(
    'with %j returns the same jobs page by page as at once',
    async (query) => {
      const all = names((await control.get(`/api/jobs?${query}`)).body);
      const seen: string[] = [];
      let cursor = '';
      do {
        const page = await control.get(`/api/jobs?limit=1&${query}${cursor && `&cursor=${cursor}`}`);
        expect(page.body.jobs.length).toBeLessThanOrEqual(1);
        seen.push(...names(page.body));
        cursor = page.body.next_cursor ?? '';
      } while (cursor);
      expect(seen).toEqual(all);
    },
  );

  it('omits payloads and results unless they are requested', async () => {
    const [plain] = (await control.get('/api/jobs?limit=1')).body.jobs;
    expect(plain).not.toHaveProperty('payload');
    const [full] = (await control.get('/api/jobs?limit=1&include=payload,result')).body.jobs;
    expect(full).toMatchObject({ payload: { big: 'x' }, result: null });
  });

  it('lists the jobs of one target under its own address', async () => {
    expect(names((await control.get('/api/targets/b/jobs/')).body)).toEqual(['behindFailed', 'failed']);
    expect(names((await control.get('/api/targets/b/jobs?held=true')).body)).toEqual(['failed']);
    expect((await control.get('/api/targets/nobody/jobs')).body.jobs).toEqual([]);
  });

  it.each([
    ['query.status', 'status=DONE'],
    ['query.status', 'status='],
    ['query.stauts', 'stauts=QUEUED'],
    ['query.limit', 'limit=201'],
    ['query.limit', 'limit=-1'],
    ['query.priority', 'priority=2'],
    ['query.created_after', 'created_after=yesterday'],
    ['query.held', 'held=yes'],
    ['query.include', 'include=secrets'],
    ['query.target_id', 'target_id='],
  ])('names %s when it is not valid: %s', async (field, query) => {
    const answer = await control.get(`/api/jobs?${query}`);
    expect(answer.status).toBe(400);
    expect(answer.body).toMatchObject({ code: 'INVALID_FIELD', field });
  });

  it('refuses cursors of other lists and tenants, and invalid ones', async () => {
    const other = await addTenant(control.db, 'other');
    await control.app.deps.registry.refresh();
    const key = await control.app.keyFor(other.tenant.id);
    const { next_cursor } = (await control.get('/api/jobs?limit=1')).body;
    const theirs = await control.app.request('GET', `/api/jobs?cursor=${next_cursor}`, { key });
    expect(theirs.body.code).toBe('INVALID_CURSOR');
    const targets = await control.get('/api/targets?limit=1');
    for (const cursor of [targets.body.next_cursor, 'x', '%22%27', 'W10', 'bnVsbA']) {
      const answer = await control.get(`/api/jobs?cursor=${cursor}`);
      expect(answer.status).toBe(400);
      expect(answer.body.code).toBe('INVALID_CURSOR');
    }
  });

  it('shows no job of another tenant', async () => {
    const other = await addTenant(control.db, 'third');
    await control.app.deps.registry.refresh();
    const key = await control.app.keyFor(other.tenant.id);
    for (const path of ['/api/jobs', '/api/targets/b/jobs', '/api/jobs?held=true', '/api/jobs?status=RUNNING']) {
      expect((await control.app.request('GET', path, { key })).body.jobs).toEqual([]);
    }
    expect((await control.app.request('GET', '/api/targets', { key })).body.targets).toEqual([]);
  });
});
