import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { explainJob } from '../../../server/explain/explain-job.ts';
import type { Reason } from '../../../server/explain/reason.ts';
import type { WorkerView } from '../../../server/explain/worker-reasons.ts';
import { cancelJob, pauseJob, skipJob } from '../../../server/jobs/actions/pause-and-cancel.ts';
import { resumeJob } from '../../../server/jobs/actions/resume.ts';
import { queueDueJobs } from '../../../server/jobs/finish/due-jobs.ts';
import { pauseTarget, resumeTarget } from '../../../server/jobs/lanes/target.ts';
import type { Job } from '../../../server/jobs/model/job.ts';
import { findJob } from '../../../server/jobs/read/read-jobs.ts';
import { addJob, claim, finish, reread } from '../../support/jobs.ts';
import { useTenantPerTest } from '../../support/postgres/database.ts';

const context = useTenantPerTest();
const daemon = { id: 'd1', draining: false, running: 0, jobTypes: ['demo.echo'] };
/** The type of all jobs of one history: those of the others wait in the same tenant. */
let type = 'demo.echo';
const view = (over: Partial<WorkerView> = {}): WorkerView => ({
  tenant: context.tenant,
  daemons: [{ ...daemon, jobTypes: ['demo.echo', type] }],
  workerConcurrency: 100,
  tenantConcurrency: 100,
  questionTimeoutSeconds: 604_800,
  capacities: [],
  ...over,
});
const why = async (job: Pick<Job, 'id'>, over: Partial<WorkerView> = {}) =>
  explainJob(context.db, await reread(context, job), view(over));
const codes = async (job: Pick<Job, 'id'>, over: Partial<WorkerView> = {}) =>
  (await why(job, over)).reasons.map((reason) => reason.code);
const by = (jobId: string) => ({ jobId, actor: 'test', author: 'ann', reason: 'because' });
const error = { code: 'HANDLER_ERROR', message: 'disk full' };

describe('why a job is not running', () => {
  it('names the running job ahead, then its hold, with author, time and actions', async () => {
    const targetId = 'behind';
    const first = await addJob(context, { targetId });
    const second = await addJob(context, { targetId });
    expect(await why(first)).toMatchObject({ claimable: true, reasons: [], position: 1 });
    const running = (await claim(context)).jobs.find((j) => j.id === first.id) as Job;
    expect(await why(first)).toMatchObject({ running: true, claimable: false, reasons: [] });
    const behind = await why(second);
    expect(behind).toMatchObject({ position: 2, reasons: [{ code: 'BEHIND_JOB', jobId: first.id }] });
    await finish(context, running, { kind: 'fail', error });
    const [held] = (await why(second)).reasons;
    expect(held).toMatchObject({ code: 'TARGET_HELD', jobId: first.id, detail: expect.stringContaining('disk full') });
    expect(held?.release.actions.map((a) => a.path)).toEqual([
      `/api/jobs/${first.id}/resume`,
      `/api/jobs/${first.id}/resolve`,
      `/api/jobs/${first.id}/skip`,
    ]);
    expect((await why(first)).reasons).toMatchObject([{ code: 'HELD', detail: expect.stringContaining('disk full') }]);
  });

  it('describes the wait of a waiting job, and its end', async () => {
    const until = '2199-01-01T00:00:00.000000Z';
    const first = await addJob(context, { targetId: 'asleep' });
    const second = await addJob(context, { targetId: 'asleep' });
    const running = (await claim(context)).jobs.find((j) => j.id === first.id) as Job;
    await finish(context, running, { kind: 'suspend', waiting: { kind: 'sleep', step: 'nap', until }, leftMs: 1e9 });
    expect(await why(first)).toMatchObject({
      claimable: false,
      running: false,
      reasons: [{ code: 'WAITING', detail: expect.stringContaining(`"nap" until ${until}`), release: { at: until } }],
    });
    expect((await why(second)).reasons).toMatchObject([
      {
        code: 'BEHIND_JOB',
        jobId: first.id,
        detail: expect.stringContaining(`is ahead in the lane and WAITING: it sleeps in "nap" until ${until}`),
      },
    ]);
  });

  it('names the author, reason and end of a paused target', async () => {
    const job = await addJob(context, { targetId: 'a/b' });
    const until = '2199-01-01T00:00:00.000000Z';
    await pauseTarget(context.db, context.schema, {
      targetId: 'a/b',
      actor: 'x',
      author: 'ann',
      reason: 'flood',
      until,
    });
    const [reason] = (await why(job)).reasons;
    expect(reason).toMatchObject({ code: 'TARGET_PAUSED', release: { at: until } });
    expect(reason?.detail).toMatch(/paused by ann since .*until 2199.*flood/);
    expect(reason?.release.actions[0]?.path).toBe('/api/targets/a%2Fb/resume');
  });

  it('names the holds that go first when the head of a paused target is resumed', async () => {
    const targetId = 'held-twice';
    const head = await addJob(context, { targetId });
    const other = await addJob(context, { targetId });
    for (const job of [head, other]) await pauseJob(context.db, context.schema, by(job.id));
    expect(await codes(head)).toEqual(['HELD']);
    await pauseTarget(context.db, context.schema, { targetId, actor: 'user:ann' });
    const { reasons, position } = await why(head);
    expect(reasons).toMatchObject([
      { code: 'HELD' },
      { code: 'TARGET_PAUSED' },
      { code: 'TARGET_HELD', jobId: other.id },
    ]);
    expect(position).toBe(1);
  });

  it('distinguishes a schedule from a backoff', async () => {
    const later = await addJob(context, { runAt: '2199-01-01T00:00:00Z' });
    expect((await why(later)).reasons).toMatchObject([
      { code: 'SCHEDULED', release: { at: '2199-01-01T00:00:00.000000Z' } },
    ]);
    const failing = await addJob(context, { maxAttempts: 2 });
    const claimed = (await claim(context)).jobs.find((j) => j.id === failing.id) as Job;
    await finish(context, claimed, { kind: 'retry', error, delayMs: 3_600_000 });
    expect(await codes(failing)).toEqual(['BACKOFF']);
  });

  it('reads only the first jobs of a long lane', async () => {
    const targetId = 'long';
    for (let i = 0; i < 40; i++) await addJob(context, { targetId });
    const last = await addJob(context, { targetId });
    const { reasons, position } = await why(last);
    expect(position).toBe(41);
    expect(reasons.length).toBe(27);
    expect(reasons.at(-1)).toMatchObject({ code: 'BEHIND_MORE', detail: expect.stringContaining('14 more') });
  });

  it('reports that a finished job is finished', async () => {
    const job = await addJob(context, {});
    await cancelJob(context.db, context.schema, by(job.id));
    expect(await codes(job)).toEqual(['FINISHED']);
  });

  it('names missing daemons, handlers and slots outside the lane', async () => {
    const job = await addJob(context, { costUnits: 3 });
    expect(await codes(job)).toEqual([]);
    expect(await codes(job, { tenant: { ...context.tenant, status: 'SUSPENDED' } })).toEqual(['TENANT_SUSPENDED']);
    expect(await codes(job, { daemons: [] })).toEqual(['NO_DAEMON']);
    expect(await codes(job, { daemons: [{ ...daemon, draining: true }] })).toEqual(['DRAINING']);
    expect(
      await codes(job, {
        daemons: [
          { ...daemon, jobTypes: [] },
          { ...daemon, draining: true },
        ],
      }),
    ).toEqual(['NO_HANDLER']);
    expect(await codes(job, { workerConcurrency: 5, daemons: [{ ...daemon, running: 5 }] })).toEqual(['DAEMONS_BUSY']);
    const none = { ...context.tenant, settings: { concurrency: 0 } };
    expect(await codes(job, { tenant: none })).toEqual(['TENANT_AT_LIMIT']);
    const full = { queue: '', total: 5, used: 3, reservation: undefined };
    expect(await codes(job, { capacities: [full] })).toEqual(['CAPACITY']);
    expect(await codes(job, { capacities: [{ ...full, used: 2 }] })).toEqual([]);
    expect(await codes(job, { capacities: [{ ...full, queue: 'other' }] })).toEqual([]);
    const kept = { jobId: 'x', priorityRank: 0, costUnits: 2 };
    expect(await codes(job, { capacities: [{ ...full, used: 2, reservation: kept }] })).toEqual(['CAPACITY']);
  });

  it('counts the jobs of the tenant on each daemon', async () => {
    await addJob(context, {});
    await addJob(context, {});
    await claim(context, { owner: 'd1' });
    const job = await addJob(context, {});
    expect(await codes(job, { tenantConcurrency: 1 })).toEqual(['TENANT_AT_LIMIT']);
    expect(await codes(job, { tenantConcurrency: 1, daemons: [daemon, { ...daemon, id: 'd2' }] })).toEqual([]);
  });

  it('reports that no remote worker has claimed recently', async () => {
    const job = await addJob(context, { remote: true });
    expect(await codes(job, { daemons: [] })).toEqual(['NO_WORKER']);
  });
});

// Random histories of two lanes and the free jobs beside them.
const targets = ['p', 'p', 'q', undefined];
const priorities = ['URGENT', 'NORMAL', 'LOW'] as const;
const outcomes = [
  { kind: 'complete', result: null },
  { kind: 'fail', error },
  { kind: 'stopPaused', message: 'paused' },
  { kind: 'retry', error, delayMs: 3_600_000 },
] as const;
const step = fc.oneof(
  {
    weight: 5,
    arbitrary: fc.record({ do: fc.constant('enqueue' as const), a: fc.nat(3), b: fc.nat(2), c: fc.nat(4) }),
  },
  { weight: 2, arbitrary: fc.record({ do: fc.constant('work' as const), a: fc.nat(9), b: fc.nat(4), c: fc.nat() }) },
  {
    weight: 3,
    arbitrary: fc.record({
      do: fc.constantFrom('pause' as const, 'pause' as const, 'resume' as const, 'cancel' as const),
      a: fc.nat(9),
      b: fc.nat(),
      c: fc.nat(),
    }),
  },
  {
    weight: 1,
    arbitrary: fc.record({
      do: fc.constantFrom('pauseTarget' as const, 'resumeTarget' as const),
      a: fc.nat(1),
      b: fc.nat(),
      c: fc.nat(),
    }),
  },
);
type Step = typeof step extends fc.Arbitrary<infer T> ? T : never;

async function play(steps: Step[]): Promise<Job[]> {
  const { db, schema } = context;
  const history = crypto.randomUUID();
  type = `history.${history}`;
  const lane = (name: string) => `${name} of ${history}`;
  const made: Job[] = [];
  const refused = () => undefined;
  for (const { do: what, a, b, c } of steps) {
    const chosen = made[a % Math.max(1, made.length)];
    const targetId = lane(targets[a] ?? 'p');
    if (what === 'enqueue') {
      const runAt = c === 0 ? '2199-01-01T00:00:00Z' : undefined;
      made.push(
        await addJob(context, {
          type,
          targetId: targets[a] && targetId,
          priority: priorities[b] ?? 'LOW',
          runAt,
          maxAttempts: 100,
          onError: c === 1 ? 'continue' : 'block',
        }),
      );
    } else if (what === 'work') {
      const { jobs } = await claim(context, { limit: 1 + (a % 3), types: [type] });
      const outcome = outcomes[b];
      // The last choice leaves them running.
      if (outcome !== undefined) for (const job of jobs) await finish(context, job, outcome);
    } else if (what === 'pauseTarget') await pauseTarget(db, schema, { targetId, actor: 'test' });
    else if (what === 'resumeTarget') await resumeTarget(db, schema, { targetId, actor: 'test' }).catch(refused);
    else if (chosen !== undefined) {
      const act = { pause: pauseJob, resume: resumeJob, cancel: cancelJob }[what];
      await act(db, schema, by(chosen.id)).catch(refused);
    }
  }
  return made;
}

async function release(job: Job, reason: Reason): Promise<void> {
  const { db, schema } = context;
  const actions = reason.release.actions.map((a) => a.action);
  const other = by(reason.jobId ?? job.id);
  if (actions.includes('skip')) await skipJob(db, schema, other);
  else if (actions.includes('resume target')) {
    await resumeTarget(db, schema, { targetId: job.targetId as string, actor: 'test' });
  } else if (actions.includes('resume')) await resumeJob(db, schema, other);
  else if (actions.includes('cancel')) {
    const { job: asked, done } = await cancelJob(db, schema, other);
    if (!done) await finish(context, asked, { kind: 'stopCanceled', message: 'canceled' });
  } else {
    expect(reason.release.at).not.toBeNull();
    await db.query(`update ${schema}.jobs set run_at = now() - interval '1 second' where id = $1`, [job.id]);
    await queueDueJobs(db, schema, 'test');
  }
}

const isClaimed = async (job: Job) =>
  (await claim(context, { limit: 1000, types: [type] })).jobs.some((j) => j.id === job.id);

describe('for any history of lanes, holds and pauses', () => {
  const histories = fc.array(step, { minLength: 8, maxLength: 24 });

  it('releasing every stated reason makes the job claimable, and nothing less does', async () => {
    await fc.assert(
      fc.asyncProperty(
        histories,
        fc.oneof(fc.constant(0), fc.nat(3)),
        fc.option(fc.nat(), { freq: 1 }),
        async (steps, which, spared) => {
          const made = await play(steps);
          const open: { job: Job; reasons: Reason[]; claimable: boolean }[] = [];
          for (const { id } of made) {
            const job = (await findJob(context.db, context.schema, id)) as Job;
            if (['RUNNING', 'SUCCESS', 'PARTIAL', 'CANCELED'].includes(job.status)) continue;
            open.push({ job, ...(await why(job)) });
          }
          // Those with many reasons are the interesting ones.
          open.sort((a, b) => b.reasons.length - a.reasons.length);
          const chosen = open[which % Math.max(1, open.length)];
          if (chosen === undefined) return;
          const { job, reasons, claimable } = chosen;
          expect(claimable).toBe(reasons.length === 0);
          const left = spared === null || reasons.length === 0 ? undefined : reasons[spared % reasons.length];
          for (const reason of reasons) if (reason !== left) await release(job, reason);
          expect(await isClaimed(job)).toBe(left === undefined);
        },
      ),
      { numRuns: 60 },
    );
  });
});
