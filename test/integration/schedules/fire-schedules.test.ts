import { expect, test } from 'vitest';
import type { Database, Queryable } from '../../../server/database/database.ts';
import { demoHandlers } from '../../../server/demo/handlers.ts';
import { jobLogRoutes } from '../../../server/http/resources/jobs/job-logs.ts';
import { scheduleRoutes } from '../../../server/http/resources/schedules.ts';
import { CommitSignals } from '../../../server/jobs/commit-signals.ts';
import { QueueLimit } from '../../../server/jobs/enqueue/enqueue-limits.ts';
import { createSchedule } from '../../../server/schedules/change-schedule.ts';
import { fireDueSchedules } from '../../../server/schedules/fire-schedules.ts';
import { HandlerRegistry } from '../../../server/worker/handlers/handler-registry.ts';
import { startDaemon } from '../../support/daemon/daemon.ts';
import { eventually } from '../../support/eventually.ts';
import { useApp } from '../../support/http/app.ts';
import { useTenant } from '../../support/postgres/database.ts';

const context = useTenant();
const firing = () => ({ db: context.db, jobTypes, queueLimit: new QueueLimit(context.db) });
const jobTypes = new HandlerRegistry(demoHandlers);
const app = useApp(context, ({ db }) => ({
  routes: [
    scheduleRoutes({ db, jobTypes, queueLimit: new QueueLimit(db), signals: new CommitSignals() }),
    jobLogRoutes(),
  ],
}));
let number = 0;

async function addSchedule(given: object = {}) {
  const schedule = { name: `s${++number}`, cron: '0 * * * *', timezone: 'UTC', missed: 'latest' as const };
  return createSchedule(context.db, context.schema, { ...schedule, job: { type: 'demo.echo' }, ...given }, 'user:ann');
}

async function makeDue(id: string, ago: string): Promise<void> {
  await context.db.query(
    `update ${context.schema}.schedules set next_at = date_trunc('hour', now()) - $2::interval where id = $1`,
    [id, ago],
  );
}

async function jobsOf(id: string) {
  return context.db.query<{ client_request_id: string; status: string; author: string | null }>(
    `select client_request_id, status, author from ${context.schema}.jobs where schedule_id = $1 order by client_request_id`,
    [id],
  );
}

test('each time is fired once, however many daemons run', async () => {
  // Schedules that other tests left due are not counted.
  await fireDueSchedules(firing(), context.tenant);
  const schedule = await addSchedule({ missed: 'all', author: 'ann' });
  await makeDue(schedule.id, '4 hours');
  const fired = await Promise.all(Array.from({ length: 6 }, () => fireDueSchedules(firing(), context.tenant)));
  expect(fired.reduce((sum, n) => sum + n, 0)).toBe(5);
  const jobs = await jobsOf(schedule.id);
  expect(new Set(jobs.map((job) => job.client_request_id)).size).toBe(5);
  expect(jobs[0]).toMatchObject({ status: 'QUEUED', author: 'ann' });
  const [row] = await context.db.query<{ ahead: boolean }>(
    `select next_at > now() as ahead from ${context.schema}.schedules where id = $1`,
    [schedule.id],
  );
  expect(row?.ahead).toBe(true);
});

test('a schedule that another daemon is about to fire is left to it', async () => {
  await fireDueSchedules(firing(), context.tenant);
  const schedule = await addSchedule();
  await makeDue(schedule.id, '0 hours');
  let firedMeanwhile: number | undefined;
  // A daemon that is slow between its read and its writes.
  const slow = {
    forTenant: () => ({
      transaction: (work: (tx: Queryable) => Promise<unknown>) =>
        context.db.transaction((tx) =>
          work({
            async query(text: string, ...rest: []) {
              const rows = await tx.query(text, ...rest);
              if (/next_at <= now\(\)/.test(text)) firedMeanwhile ??= await fireDueSchedules(firing(), context.tenant);
              return rows;
            },
          } as Queryable),
        ),
    }),
  } as unknown as Database;
  expect(await fireDueSchedules({ ...firing(), db: slow }, context.tenant)).toBe(1);
  expect(firedMeanwhile).toBe(0);
  const events = await context.db.query(
    `select from ${context.schema}.events where type = 'schedule.fired' and data ->> 'schedule_id' = $1`,
    [schedule.id],
  );
  expect(events).toHaveLength(1);
});

test('a paused schedule does not fire; a job that is refused is recorded and not retried forever', async () => {
  const key = await app.keyFor(context.tenant.id);
  const paused = await addSchedule();
  await app.request('POST', `/api/schedules/${paused.id}/pause`, { key });
  await makeDue(paused.id, '0 hours');
  const broken = await addSchedule({ job: { type: 'gone.away' } });
  await makeDue(broken.id, '0 hours');
  await fireDueSchedules(firing(), context.tenant);
  expect(await jobsOf(paused.id)).toEqual([]);
  expect(await jobsOf(broken.id)).toEqual([]);
  const reported = await context.db.query<{ data: object }>(
    `select data from ${context.schema}.events where type = 'schedule.failed' and data ->> 'schedule_id' = $1`,
    [broken.id],
  );
  expect(reported).toMatchObject([{ data: { code: 'UNKNOWN_JOB_TYPE' } }]);
});

test('schedules over HTTP: create, read, change, run now, pause, resume, delete', async () => {
  const key = await app.keyFor(context.tenant.id);
  const body = {
    name: 'reports',
    cron: '0 8 * * MON-FRI',
    timezone: 'Europe/Berlin',
    job: { type: 'demo.sleep', payload: { seconds: 0 } },
  };
  const made = await app.request('POST', '/api/schedules', { key, body });
  expect(made.status).toBe(201);
  expect(made.body).toMatchObject({ name: 'reports', missed: 'latest', paused: false });
  expect(made.body.next_runs).toHaveLength(5);
  expect(made.body.next_at).toBe(made.body.next_runs[0].replace('.000Z', '.000000Z'));
  const path = `/api/schedules/${made.body.id}`;

  expect((await app.request('POST', '/api/schedules', { key, body })).body).toMatchObject({ code: 'ALREADY_EXISTS' });
  const changed = await app.request('PATCH', path, { key, body: { cron: '30 9 * * *', missed: 'skip' } });
  expect(changed.body).toMatchObject({ cron: '30 9 * * *', missed: 'skip', timezone: 'Europe/Berlin' });

  const ran = await app.request('POST', `${path}/run`, { key });
  expect(ran.status).toBe(201);
  expect(ran.body.job).toMatchObject({ type: 'demo.sleep', status: 'QUEUED' });
  expect(ran.body.schedule.last_job_id).toBe(ran.body.job.id);

  expect((await app.request('POST', `${path}/pause`, { key })).body).toMatchObject({ paused: true, next_at: null });
  expect((await app.request('POST', `${path}/resume`, { key })).body).toMatchObject({ paused: false });
  const list = await app.request('GET', '/api/schedules?limit=1', { key });
  expect(list.body.schedules).toHaveLength(1);
  expect((await app.request('DELETE', path, { key })).status).toBe(204);
  expect((await app.request('GET', path, { key })).status).toBe(404);
});

test.each([
  [{ cron: 'never' }, 'cron'],
  [{ cron: '0 0 30 2 *' }, 'cron'],
  [{ timezone: 'Mars/Base' }, 'timezone'],
  [{ job: { type: 'demo.sleep', payload: { seconds: -1 } } }, 'job.payload.seconds'],
  [{ job: { type: 'nobody.knows' } }, 'job.type'],
  [{ job: { type: 'demo.echo', run_at: '2026-01-01T00:00:00Z' } }, 'job.run_at'],
])('an invalid schedule is refused: %j', async (given, field) => {
  const key = await app.keyFor(context.tenant.id);
  const body = { name: 'bad', cron: '0 0 * * *', job: { type: 'demo.echo' }, ...given };
  const answer = await app.request('POST', '/api/schedules', { key, body });
  expect(answer.status).toBe(400);
  expect(answer.body.field).toBe(field);
});

test('a daemon fires a schedule when its time comes, and its handler’s log can be read', async () => {
  const daemon = await startDaemon(context);
  const key = await app.keyFor(context.tenant.id);
  const request = (method: string, path: string, body?: unknown) =>
    fetch(daemon.url + path, {
      method,
      headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
      ...(body !== undefined && { body: JSON.stringify(body) }),
    }).then((answer) => answer.json() as Promise<Record<string, never>>);
  const schedule = await request('POST', '/api/schedules', {
    name: 'every second',
    cron: '* * * * * *',
    job: { type: 'demo.fail', payload: { times: 1 }, max_attempts: 1 },
  });
  const jobId = await eventually(async () => {
    const { last_job_id } = await request('GET', `/api/schedules/${schedule.id}`);
    expect(last_job_id).toEqual(expect.any(String));
    return last_job_id;
  });
  await eventually(async () => {
    const { lines } = await request('GET', `/api/jobs/${jobId}/logs`);
    expect(lines).toMatchObject([{ level: 'warn', message: 'failing as asked', attempt: 1 }]);
  });
  // It would be due in the tests that follow.
  await request('POST', `/api/schedules/${schedule.id}/pause`);
});
