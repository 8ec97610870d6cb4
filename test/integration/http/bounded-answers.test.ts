// Pages and claims end before their documents are too many bytes, and continue where they ended.
import { describe, expect, it } from 'vitest';
import { schedulerRoutes } from '../../../server/daemon/create-api.ts';
import { eventRoutes } from '../../../server/http/resources/events.ts';
import { jobLogRoutes } from '../../../server/http/resources/jobs/job-logs.ts';
import { scheduleRoutes } from '../../../server/http/resources/schedules.ts';
import { StepGroupCommit } from '../../../server/jobs/attempt/step-group-commit.ts';
import { claimJobs } from '../../../server/jobs/claim/claim.ts';
import { CommitSignals } from '../../../server/jobs/commit-signals.ts';
import { QueueLimit } from '../../../server/jobs/enqueue/enqueue-limits.ts';
import { finishAttempts } from '../../../server/jobs/finish/finish.ts';
import { loadConfig } from '../../../server/kernel/config.ts';
import { createLogger } from '../../../server/kernel/logger.ts';
import { ClaimWaiters } from '../../../server/scheduler/claim-waiters.ts';
import { jobTypes, useControl } from '../../support/http/control.ts';
import { addJob } from '../../support/jobs.ts';

const control = useControl(({ db }) => {
  const queueLimit = new QueueLimit(db);
  const signals = new CommitSignals();
  const logger = createLogger('silent');
  const waiters = new ClaimWaiters(3_600_000, logger);
  return [
    eventRoutes(),
    jobLogRoutes(),
    scheduleRoutes({ db, jobTypes, queueLimit, signals }),
    ...schedulerRoutes({
      config: loadConfig({}),
      logger,
      waiters,
      queueLimit,
      signals,
      stepCommits: new StepGroupCommit(db),
      jobTypes,
    }),
  ];
});
// Compressed it is a few kilobytes: what counts is what would be sent.
const large = { text: 'x'.repeat(1_000_000) };
const many = 9;
const request = { owner: 'w', limit: 100, leaseSeconds: 60 };

/** All pages of a list; each must have something in it. */
async function pages(path: string, list: string): Promise<{ id?: string; job_id?: string; name?: string }[][]> {
  const found = [];
  let cursor: string | null = '';
  while (cursor !== null) {
    const answer = await control.get(`${path}${cursor && `&cursor=${cursor}`}`);
    expect(answer.status).toBe(200);
    expect(JSON.stringify(answer.body).length).toBeLessThan(6_000_000);
    found.push(answer.body[list]);
    cursor = answer.body.next_cursor;
  }
  return found;
}

describe('a claim', () => {
  it('takes fewer jobs if their payloads are large, and reports that there are more', async () => {
    const ofType = { ...request, types: ['free'] };
    for (let n = 0; n < many; n++) await addJob(control, { type: 'free', payload: large });
    const first = await claimJobs(control.db, control.schema, ofType);
    expect(first.jobs.length).toBeLessThan(many);
    expect(first.isCut).toBe(true);
    const ids = new Set(first.jobs.map((job) => job.id));
    for (let rest = first; rest.isCut; ) {
      rest = await claimJobs(control.db, control.schema, ofType);
      for (const job of rest.jobs) ids.add(job.id);
    }
    expect(ids.size).toBe(many);
  });

  it('that starts the next jobs of lanes takes fewer too, and leaves the others to the next claim', async () => {
    const lanes = Array.from({ length: many }, (_, n) => `lane-${n}`);
    const ofType = { ...request, types: ['laned'] };
    for (const targetId of lanes) await addJob(control, { type: 'laned', targetId });
    for (const targetId of lanes) await addJob(control, { type: 'laned', targetId, payload: large });
    const { jobs, leaseId } = await claimJobs(control.db, control.schema, ofType);
    expect(jobs).toHaveLength(many);
    const attempts = jobs.map((job) => ({
      jobId: job.id,
      leaseId,
      targetId: job.targetId,
      outcome: { kind: 'complete' as const, result: null },
    }));
    const claimNext = { ...ofType, leaseId: crypto.randomUUID() };
    const finished = await finishAttempts(control.db, control.schema, attempts, { actor: 'worker:w', claimNext });
    expect(finished.claimed?.jobs.length).toBeGreaterThan(0);
    expect(finished.claimed?.jobs.length).toBeLessThan(many);
    expect(finished.runnable).toBe(true);
    let taken = finished.claimed?.jobs.length ?? 0;
    for (let rest = 1; rest > 0; taken += rest) {
      rest = (await claimJobs(control.db, control.schema, ofType)).jobs.length;
    }
    expect(taken).toBe(many);
  });

  it('of a remote worker takes fewer too', async () => {
    for (let n = 0; n < many; n++) await addJob(control, { payload: large, queue: 'far', remote: true });
    const body = { addon_id: 'far', worker_id: 'w1', limit: 100 };
    const ids = new Set<string>();
    for (let answer = await control.post('/api/scheduler/jobs/claim', body); answer.status === 200; ) {
      expect(answer.body.jobs.length).toBeLessThan(many);
      for (const job of answer.body.jobs) ids.add(job.job_id);
      answer = await control.post('/api/scheduler/jobs/claim', body);
    }
    expect(ids.size).toBe(many);
  });
});

describe('a list', () => {
  it('of jobs with payloads comes in pages of a few megabytes', async () => {
    for (let n = 0; n < many; n++) await addJob(control, { payload: large, queue: 'listed' });
    const found = await pages('/api/jobs?queue=listed&limit=50&include=payload,result', 'jobs');
    expect(found.length).toBeGreaterThan(1);
    expect(new Set(found.flat().map((job) => job.id)).size).toBe(many);
    expect(await pages('/api/jobs?queue=listed&limit=50', 'jobs')).toHaveLength(1);
    const scheduler = await pages('/api/scheduler/jobs?addon_id=listed&limit=50', 'jobs');
    expect(scheduler.length).toBeGreaterThan(1);
    expect(new Set(scheduler.flat().map((job) => job.job_id)).size).toBe(many);
  });

  it('of schedules comes in pages too', async () => {
    for (let n = 0; n < many; n++) {
      const job = { type: 'demo.echo', payload: large };
      const made = await control.post('/api/schedules', { name: `s${n}`, cron: '0 0 1 1 *', job });
      expect(made.status).toBe(201);
    }
    const found = await pages('/api/schedules?limit=50', 'schedules');
    expect(found.length).toBeGreaterThan(1);
    expect(found.flat().map((schedule) => schedule.name)).toEqual(Array.from({ length: many }, (_, n) => `s${n}`));
  });

  it('of events and of log lines comes in pages too', async () => {
    const job = await addJob(control);
    await control.db.query(
      `insert into ${control.schema}.events (type, job_id, actor, data)
       select 'job.progress', $1, 'test', jsonb_build_object('text', repeat('x', 100000)) from generate_series(1, 100)`,
      [job.id],
    );
    await control.db.query(
      `insert into ${control.schema}.job_logs (job_id, at, attempt, level, message)
       select $1, now(), 1, 'info', repeat('x', 100000) from generate_series(1, 100)`,
      [job.id],
    );
    for (const path of [`/api/jobs/${job.id}/events`, `/api/scheduler/jobs/${job.id}/events`]) {
      const found = await pages(`${path}?limit=1000`, 'events');
      expect(found.length).toBeGreaterThan(1);
      expect(found.flat()).toHaveLength(101);
    }
    const ofJob = await pages(`/api/events?job_id=${job.id}&limit=1000`, 'events');
    expect(ofJob.flat()).toHaveLength(101);
    const log = await pages('/api/events?type=job.progress&limit=1000', 'events');
    expect(log.length).toBeGreaterThan(1);
    expect(log.flat()).toHaveLength(100);
    const lines = await control.get(`/api/jobs/${job.id}/logs?limit=1000`);
    expect(lines.body.lines.length).toBeLessThan(100);
    const rest = await control.get(`/api/jobs/${job.id}/logs?limit=1000&cursor=${lines.body.next_cursor}`);
    expect(rest.body.lines.length).toBeGreaterThan(0);
  });
});

describe('a job', () => {
  it('shows its last phases, and their total number', async () => {
    const read = async (insert: string) => {
      const { id } = await addJob(control);
      await control.db.query(
        `insert into ${control.schema}.phases (job_id, name, kind, position, status, result) ${insert}`,
        [id],
      );
      const { phases, phases_total } = (await control.get(`/api/jobs/${id}`)).body;
      const names = phases.map((phase: { name: string }) => phase.name);
      return { first: names[0], last: names.at(-1), count: names.length, total: phases_total };
    };
    const steps = (count: number, result: string) =>
      `select $1, 'step#' || n, 'step', n, 'completed', ${result} from generate_series(1, ${count}) as n`;
    const small = "'1'::jsonb";
    expect(await read(steps(500, small))).toEqual({ first: 'step#1', last: 'step#500', count: 500 });
    expect(await read(steps(700, small))).toEqual({ first: 'step#201', last: 'step#700', count: 500, total: 700 });
    const large = "to_jsonb(repeat('x', 1000000))";
    expect(await read(steps(12, large))).toEqual({ first: 'step#4', last: 'step#12', count: 9, total: 12 });
  });
});
