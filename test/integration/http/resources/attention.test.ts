import { describe, expect, it } from 'vitest';
import { controlSchema } from '../../../../server/database/identifiers.ts';
import { recordEvent } from '../../../../server/events/log/record.ts';
import { attentionRoutes } from '../../../../server/http/resources/attention.ts';
import { laneRoutes } from '../../../../server/http/resources/jobs/lanes.ts';
import { schedulerStatsRoutes } from '../../../../server/http/resources/scheduler/scheduler-stats.ts';
import { statsRoutes } from '../../../../server/http/resources/stats.ts';
import { findExpiredLeases, recoverLease } from '../../../../server/jobs/finish/recover.ts';
import { pauseTarget } from '../../../../server/jobs/lanes/target.ts';
import type { Job } from '../../../../server/jobs/model/job.ts';
import { firstUuid } from '../../../../server/kernel/limits.ts';
import { rollUpNow } from '../../../../server/stats/roll-up.ts';
import { useControl } from '../../../support/http/control.ts';
import { addJob, addJobs, claim, expireLease, finish } from '../../../support/jobs.ts';

const control = useControl(() => [attentionRoutes(), laneRoutes(), statsRoutes(), schedulerStatsRoutes()]);
const failing = { kind: 'fail', error: { code: 'X', message: 'broken', stack: 'Error: broken\n    at here' } } as const;

/** With a lease that does not expire meanwhile: one of the tests looks for those that have. */
async function claimOne(type: string, owner = 'w1'): Promise<Job> {
  const [job] = (await claim(control, { types: [type], limit: 1, owner, leaseSeconds: 3600 })).jobs;
  if (job === undefined) throw new Error(`no ${type} to claim`);
  return job;
}

describe('GET /api/attention', () => {
  it('lists holds with the jobs behind them, and the types that fail', async () => {
    const [first] = await addJobs(control, [
      { type: 'need.help', targetId: 'n1' },
      { type: 'need.help', targetId: 'n1' },
      { type: 'need.help', targetId: 'n1' },
    ]);
    await finish(control, await claimOne('need.help'), failing);
    const { status, body } = await control.get('/api/attention');
    expect(status).toBe(200);
    const counts = (await control.get('/api/attention/count')).body;
    const { paused, error, questions } = counts;
    expect(body).toMatchObject({ holds: { paused, error }, questions: { open: questions, newest: [] } });
    expect(counts.error).toBeGreaterThan(0);
    const hold = body.holds.newest.find((each: { job: { id: string } }) => each.job.id === first?.id);
    expect(hold).toMatchObject({
      job: { id: first?.id, target_id: 'n1', error: { message: 'broken', stack: expect.stringContaining('at here') } },
      waiting: 2,
      oldest_waiting_at: expect.any(String),
    });
    const failed = body.failing_types.find((each: { type: string }) => each.type === 'need.help');
    expect(failed).toMatchObject({ count: 1, last_job_id: first?.id });
    expect(failed.error).not.toHaveProperty('stack');
  });

  it('names lost workers, and schedules that failed or missed runs', async () => {
    await addJob(control, { type: 'lose.me', maxAttempts: 2 });
    const lost = await claimOne('lose.me', 'worker-gone');
    await expireLease(control, lost.leaseId as string);
    for (const lease of await findExpiredLeases(control.db, control.schema, 0, firstUuid, 10)) {
      await recoverLease(control.db, control.schema, lease, { actor: 'sweeper:w1', graceSeconds: 0, tokenLimit: 0 });
    }
    await control.db.query(
      `insert into ${control.schema}.schedules (id, name, cron, job) values (gen_random_uuid(), 'nightly', '0 3 * * *', '{}')`,
    );
    for (const [id, type, data] of [
      ['a', 'schedule.missed', { missed: 3 }],
      ['b', 'schedule.failed', { message: 'the queue is full' }],
    ] as const) {
      await recordEvent(control.db, control.schema, {
        type,
        actor: `schedule:${id}`,
        data: { schedule_id: id, name: id, ...data },
      });
    }
    await rollUpNow(control.db, control.schema);
    const { body } = await control.get('/api/attention');
    expect(body.lost_workers).toEqual([
      { owner: 'worker-gone', attempts: 1, last_at: expect.any(String), last_job_id: lost.id },
    ]);
    expect(
      new Map(body.failed_schedules.map((each: { id: string; message: string }) => [each.id, each.message])),
    ).toEqual(
      new Map([
        ['a', 'It missed 3 runs.'],
        ['b', 'the queue is full'],
      ]),
    );
  });
});

describe('GET /api/lanes', () => {
  it('lists lanes by their state, and by a part of their name', async () => {
    await addJobs(control, [
      { type: 'lane.run', targetId: 'lane-run' },
      { type: 'lane.run', targetId: 'lane-run', priority: 'LOW' },
      { type: 'lane.hold', targetId: 'lane-hold' },
    ]);
    await claimOne('lane.run');
    await finish(control, await claimOne('lane.hold'), failing);
    await pauseTarget(control.db, control.schema, { targetId: 'lane-paused', actor: 'user:ann', reason: 'tea' });
    const lanesOf = async (query: string) => (await control.get(`/api/lanes?search=lane-&${query}`)).body.lanes;
    const names = async (query: string) => (await lanesOf(query)).map((lane: { id: string }) => lane.id);
    expect(await names('show=all')).toEqual(['lane-hold', 'lane-paused', 'lane-run']);
    expect(await names('show=held')).toEqual(['lane-hold']);
    expect(await names('show=paused')).toEqual(['lane-paused']);
    const [running] = await lanesOf('show=running');
    expect(running).toMatchObject({
      id: 'lane-run',
      head: { type: 'lane.run', status: 'RUNNING', attempts: 1 },
      waiting: 1,
      next: [{ priority: 'LOW' }],
      hold: null,
      canary_job_id: null,
    });
    const first = (await control.get('/api/lanes?search=lane-&limit=2')).body;
    const second = (await control.get(`/api/lanes?search=lane-&limit=2&cursor=${first.next_cursor}`)).body;
    expect([...first.lanes, ...second.lanes].map((lane) => lane.id)).toEqual(['lane-hold', 'lane-paused', 'lane-run']);
    expect((await control.get('/api/lanes?show=nonsense')).status).toBe(400);
  });
});

describe('the list of jobs', () => {
  it('finds by a path of the payload and by the parent', async () => {
    const parent = await addJob(control, { type: 'find.parent' });
    const [deep, child] = await addJobs(control, [
      { type: 'find.it', payload: { customer: { id: 42, tags: ['a', 'b'] } } },
      { type: 'find.it', parentId: parent.id, payload: { customer: { id: 43 } } },
    ]);
    const ids = async (query: string) =>
      (await control.get(`/api/jobs?${query}`)).body.jobs.map((job: { id: string }) => job.id);
    expect(await ids('payload=customer.id%3D42')).toEqual([deep?.id]);
    expect(await ids('payload=customer.tags.1%3Db')).toEqual([deep?.id]);
    expect(await ids('payload=customer.id%3D44')).toEqual([]);
    expect(await ids(`parent_id=${parent.id}`)).toEqual([child?.id]);
    expect((await control.get('/api/jobs?payload=nothing')).status).toBe(400);
    expect((await control.get('/api/jobs?parent_id=nothing')).status).toBe(400);
    const after = new Date(Date.now() - 60_000).toISOString();
    expect(await ids(`parent_id=${parent.id}&created_after=${after}`)).toEqual([child?.id]);
  });
});

describe('workers, capacity and ages', () => {
  it('shows which jobs a drain will interrupt', async () => {
    await addJobs(control, [{ type: 'drain.slow' }, { type: 'drain.fast' }, { type: 'drain.mute' }]);
    const types = ['drain.slow', 'drain.fast', 'drain.mute'];
    await claim(control, { types, owner: 'daemon-1', leaseSeconds: 3600 });
    await control.db.query(
      `update ${control.schema}.jobs
          set started_at = now() - interval '1 minute', progress = case type when 'drain.slow' then 1 when 'drain.fast' then 90 end
        where type like 'drain.%'`,
    );
    await control.db.query(
      `insert into ${controlSchema}.daemons (id, incarnation, host, pid, version, draining, drain_ends_at)
       values ('daemon-1', gen_random_uuid(), 'h', 1, '1', true, now() + interval '5 minutes')`,
    );
    const { body } = await control.get('/api/workers');
    const worker = body.workers.find((each: { id: string }) => each.id === 'daemon-1');
    expect(worker).toMatchObject({ kind: 'daemon', state: 'draining', running: 3, drain_ends_at: expect.any(String) });
    expect(
      worker.draining_jobs.map((job: { type: string; misses_drain: boolean | null }) => [job.type, job.misses_drain]),
    ).toEqual([
      ['drain.slow', true],
      ['drain.fast', false],
      ['drain.mute', null],
    ]);
  });

  it('counts used and requested units by queue', async () => {
    await addJobs(control, [
      { type: 'cost.run', queue: 'gpu', costUnits: 3 },
      { type: 'cost.wait', queue: 'gpu', costUnits: 5 },
      { type: 'cost.wait', queue: 'gpu', costUnits: 2 },
    ]);
    await claimOne('cost.run');
    const { body } = await control.get('/api/scheduler/stats/capacity');
    expect(body.queues.find((each: { queue: string }) => each.queue === 'gpu')).toEqual({
      queue: 'gpu',
      total: null,
      used: 3,
      requested: 7,
      waiting: 2,
      reserved: 0,
    });
  });

  it('has the age of the oldest claimable job over time', async () => {
    const read = async () =>
      (await control.get('/api/stats/timeseries?metric=oldest_age&range=1h&bucket=1m')).body.points as {
        value: number;
      }[];
    await addJob(control, { type: 'old.one' });
    await control.db.query(
      `update ${control.schema}.jobs set run_at = now() - interval '2 hours', created_at = now() - interval '2 hours' where type = 'old.one'`,
    );
    await addJob(control, { type: 'old.other' });
    const points = await read();
    expect(points).toHaveLength(60);
    expect(points.at(-1)?.value).toBeGreaterThan(7190);
    expect((await control.get('/api/stats/timeseries?metric=oldest_age&queue=gpu')).status).toBe(400);
  });
});
