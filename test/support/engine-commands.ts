// The verbs of the engine as commands of a property test: each acts on the database through the real
// code and on the model, and compares what both say.
import fc from 'fast-check';
import { v7 as uuidv7 } from 'uuid';
import { expect } from 'vitest';
import { claimJobs } from '../../server/jobs/claim.ts';
import { queueDueJobs } from '../../server/jobs/due.ts';
import { enqueue, type NewJob } from '../../server/jobs/enqueue.ts';
import { priorities } from '../../server/jobs/job.ts';
import { renewLeases } from '../../server/jobs/lease.ts';
import { findExpiredLeases, recoverLease } from '../../server/jobs/recover.ts';
import { resolveJob, resumeJob } from '../../server/jobs/resume.ts';
import { type Outcome, settle } from '../../server/jobs/settle.ts';
import { cancelJob, pauseJob, skipJob } from '../../server/jobs/stop.ts';
import { pauseTarget, resumeTarget } from '../../server/jobs/target.ts';
import { Problem } from '../../server/kernel/errors.ts';
import type { TenantContext } from './database.ts';
import type { EngineModel, ModelJob, ModelLease, NewModelJob, Told } from './engine-model.ts';

const firstId = '00000000-0000-0000-0000-000000000000';
const error = { code: 'X', message: 'x' };
const hourMs = 3_600_000;
const sweep = { actor: 'sweeper:test', graceSeconds: 0, tokenLimit: 0 };

/** The real engine. `racing`: others act at the same time, so that the model has no say. */
export class EngineDriver {
  readonly context: TenantContext;
  readonly racing: boolean;

  constructor(context: TenantContext, { racing = false } = {}) {
    this.context = context;
    this.racing = racing;
  }

  /** Says what a person was told; anything but a refusal is a failure of the test. */
  async told(act: (by: { actor: string; author: string }) => Promise<{ done: boolean }>): Promise<Told> {
    try {
      return (await act({ actor: 'user:ann', author: 'ann' })).done ? 'done' : 'asked';
    } catch (error) {
      if (error instanceof Problem && error.httpStatus < 500) return 'refused';
      throw error;
    }
  }

  async compare(model: EngineModel): Promise<void> {
    if (this.racing) return;
    const { db, schema } = this.context;
    const rows = await db.query(
      `select id, status, lane_head as head, lane_rank as rank, attempt, attempt_floor as floor, cancel_intent as intent,
              case when status = 'RUNNING' then lease_id end as lease from ${schema}.jobs order by id`,
    );
    const expected = model.jobs.map(({ id, status, head, rank, attempt, floor, intent, lease }) => {
      return { id, status, head, rank, attempt, floor, intent, lease: status === 'RUNNING' ? lease : null };
    });
    expect(rows).toEqual(expected.sort((a, b) => (a.id < b.id ? -1 : 1)));
  }

  async statuses(): Promise<Record<string, number>> {
    const { db, schema } = this.context;
    const rows = await db.query<{ status: string; n: number }>(
      `select status, count(*)::int as n from ${schema}.jobs group by status`,
    );
    return Object.fromEntries(rows.map((row) => [row.status, row.n]));
  }

  async expireLease(leaseId: string): Promise<void> {
    const { db, schema } = this.context;
    await db.query(`update ${schema}.leases set expires_at = now() - interval '1 s' where id = $1`, [leaseId]);
  }

  async sweepLeases(): Promise<void> {
    const { db, schema } = this.context;
    for (const lease of await findExpiredLeases(db, schema, 0, firstId, 100))
      await recoverLease(db, schema, lease, sweep);
  }

  async makeDue(jobId?: string): Promise<void> {
    const { db, schema } = this.context;
    await db.query(
      `update ${schema}.jobs set run_at = now() - interval '1 s' where status = 'PENDING' and ($1::uuid is null or id = $1)`,
      [jobId ?? null],
    );
    await queueDueJobs(db, schema, 'worker:test');
  }

  /** Takes everything out of the way; then claims and finishes until nothing is left. */
  async drain(): Promise<void> {
    const { db, schema } = this.context;
    const by = { actor: 'user:ann' };
    await db.query(`update ${schema}.leases set expires_at = now() - interval '1 s'`);
    await this.sweepLeases();
    for (const { id } of await db.query<{ id: string }>(
      `select id from ${schema}.targets where paused_at is not null`,
    )) {
      await resumeTarget(db, schema, { targetId: id, ...by });
    }
    for (;;) {
      await this.makeDue();
      const held = await db.query<{ id: string }>(`select id from ${schema}.jobs where status in ('PAUSED', 'ERROR')`);
      for (const { id } of held) await resumeJob(db, schema, { jobId: id, ...by });
      const { jobs, leaseId } = await claimJobs(db, schema, { owner: 'drain', limit: 1000, leaseSeconds: 60 });
      if (jobs.length === 0) break;
      const items = jobs.map(({ id, targetId }) => {
        return { jobId: id, leaseId, targetId, outcome: { kind: 'complete' as const, result: null } };
      });
      const { accepted } = await settle(db, schema, items, { actor: 'worker:drain', endedLeases: [leaseId] });
      expect(accepted.size).toBe(jobs.length);
    }
    const left = Object.keys(await this.statuses()).filter((s) => !['SUCCESS', 'PARTIAL', 'CANCELED'].includes(s));
    expect(left).toEqual([]);
  }
}

type Command = fc.AsyncCommand<EngineModel, EngineDriver>;
type Run<T> = (given: T, model: EngineModel, real: EngineDriver) => Promise<void>;

function command<T>(name: string, given: fc.Arbitrary<T>, run: Run<T>): fc.Arbitrary<Command> {
  return given.map((value) => ({
    check: () => true,
    run: async (model, real) => {
      await run(value, model, real);
      await real.compare(model);
    },
    toString: () => `${name}(${fc.stringify(value)})`,
  }));
}

const targets = ['a', 'b', 'c'];
const pick = fc.nat(1000);
const pickTarget = fc.constantFrom(...targets);
const pickFrom = <T>(all: readonly T[], n: number): T | undefined => all[n % Math.max(1, all.length)];

const newJob = fc.record({
  target: fc.option(pickTarget, { freq: 5 }),
  priority: fc.constantFrom(...priorities),
  maxAttempts: fc.integer({ min: 1, max: 3 }),
  blocks: fc.boolean(),
  backsOff: fc.boolean(),
  future: fc.nat(3).map((n) => n === 0),
});

function toNewJob({ id, target, priority, maxAttempts, blocks, backsOff, future }: NewModelJob): NewJob {
  return {
    id,
    type: 'test',
    payload: {},
    clientRequestId: id,
    requestHash: priority,
    priority,
    maxAttempts,
    onError: blocks ? 'block' : 'continue',
    ...(target !== null && { targetId: target }),
    ...(future && { runAt: new Date(Date.now() + hourMs).toISOString() }),
    ...(backsOff && { retry: { kind: 'fixed', delaySeconds: 3600, maxDelaySeconds: 3600, jitter: 0 } }),
  };
}

const enqueueJobs = command('enqueue', fc.array(newJob, { minLength: 1, maxLength: 3 }), async (given, model, real) => {
  const { db, schema } = real.context;
  const jobs = given.map((job) => ({ ...job, id: uuidv7() }));
  const enqueued = await enqueue(db, schema, jobs.map(toNewJob), 'test');
  expect(enqueued.map((e) => e.kind)).toEqual(jobs.map(() => 'created'));
  for (const job of jobs) model.enqueue(job);
});

const replay = command('replay', pick, async (n, model, real) => {
  const job = pickFrom(model.jobs, n);
  if (job === undefined) return;
  const again = toNewJob({ ...job, future: false });
  const ask = async (more: Partial<NewJob>) => {
    const { id: _id, ...request } = { ...again, ...more };
    return (await enqueue(real.context.db, real.context.schema, [request], 'test'))[0];
  };
  expect(await ask({})).toMatchObject({ kind: 'replayed', job: { id: job.id } });
  expect(await ask({ requestHash: 'other' })).toMatchObject({ kind: 'conflict', job: { id: job.id } });
  // Each of the two took a number of its lane for nothing.
  if (job.target !== null) model.takeNumbers(job.target, 2);
});

const claim = command('claim', fc.tuple(pick, fc.integer({ min: 1, max: 4 })), async ([n, limit], model, real) => {
  const { db, schema } = real.context;
  const expected = model.claimable(limit).map((job) => job.id);
  const claimed = await claimJobs(db, schema, { owner: `w${n % 3}`, limit, leaseSeconds: 3600 });
  if (real.racing) return void model.adopt(claimed);
  expect(claimed.jobs.map((job) => job.id)).toEqual(expected);
  model.claim(limit, claimed.leaseId);
});

const beat = command('beat', pick, async (n, model, real) => {
  const lease = pickFrom(model.leases, n);
  if (lease === undefined) return;
  const held = lease.jobs.map((job) => ({ jobId: job.id, leaseId: lease.id }));
  const live = await renewLeases(real.context.db, real.context.schema, held, 3600);
  if (real.racing) return;
  const expected = lease.jobs.filter((job) => model.owns(lease, job)).map((job) => [job.id, job.intent]);
  expect(live.map((job) => [job.jobId, job.cancelIntent]).sort()).toEqual(expected.sort());
});

const kinds = ['complete', 'completePartly', 'retry', 'fail', 'stopPaused', 'stopCanceled', 'giveBack'] as const;

/** Of any attempt that ever was: most are zombies by then, and refused. */
const end = command('end', fc.tuple(pick, fc.constantFrom(...kinds)), async ([n, wanted], model, real) => {
  const attempt = pickFrom(model.attempts, n);
  if (attempt === undefined) return;
  const { job, lease } = attempt;
  await settleOne(job, lease, wanted, model, real);
});

const endRunning = command('finish', fc.tuple(pick, fc.constantFrom(...kinds)), async ([n, wanted], model, real) => {
  const attempt = pickFrom(
    model.attempts.filter(({ job, lease }) => model.owns(lease, job)),
    n,
  );
  if (attempt) await settleOne(attempt.job, attempt.lease, wanted, model, real);
});

async function settleOne(
  job: ModelJob,
  lease: ModelLease,
  wanted: (typeof kinds)[number],
  model: EngineModel,
  real: EngineDriver,
): Promise<void> {
  // The worker retries only while attempts are left.
  const kind = wanted === 'retry' && (real.racing || !model.hasAttemptsLeft(job)) ? 'fail' : wanted;
  const item = { jobId: job.id, leaseId: lease.id, targetId: job.target, outcome: outcomes[kind] };
  const { accepted } = await settle(real.context.db, real.context.schema, [item], { actor: 'worker:test' });
  if (real.racing) return;
  expect(accepted.has(job.id)).toBe(model.settle(lease, job, kind));
}

const outcomes: Record<(typeof kinds)[number], Outcome> = {
  complete: { kind: 'complete', result: { ok: true } },
  completePartly: { kind: 'completePartly', result: 1, error },
  retry: { kind: 'retry', error, delayMs: hourMs },
  fail: { kind: 'fail', error },
  stopPaused: { kind: 'stopPaused', message: 'paused' },
  stopCanceled: { kind: 'stopCanceled', message: 'canceled' },
  giveBack: { kind: 'giveBack', reason: 'drained' },
};

const expireLease = command('expireLease', fc.tuple(pick, fc.boolean()), async ([n, revived], model, real) => {
  const lease = pickFrom(
    model.leases.filter((l) => !l.ended),
    n,
  );
  if (lease === undefined) return;
  await real.expireLease(lease.id);
  if (revived) {
    // A beat that comes before the sweeper keeps the lease.
    const held = lease.jobs.map((job) => ({ jobId: job.id, leaseId: lease.id }));
    await renewLeases(real.context.db, real.context.schema, held, 3600);
  } else model.expire(lease);
  await Promise.all([real.sweepLeases(), real.sweepLeases()]);
});

const sweepNothing = command('sweep', fc.constant(0), async (_given, _model, real) => real.sweepLeases());

const due = command('due', pick, async (n, model, real) => {
  const job = pickFrom(model.jobs, n);
  if (job === undefined) return;
  await real.makeDue(job.id);
  model.becomeDue(job);
});

type Act = 'pause' | 'cancel' | 'skip' | 'resume' | 'resolve';
const acts: Record<Act, typeof pauseJob> = {
  pause: pauseJob,
  cancel: cancelJob,
  skip: skipJob,
  resume: resumeJob,
  resolve: (db, schema, request) => resolveJob(db, schema, { ...request, result: { by: 'ann' } }),
};

const person = (act: Act) =>
  command(act, pick, async (n, model, real) => {
    const job = pickFrom(model.jobs, n);
    if (job === undefined) return;
    const told = await real.told((by) => acts[act](real.context.db, real.context.schema, { jobId: job.id, ...by }));
    if (!real.racing) expect(told).toBe(model[act](job));
  });

/** A wish that comes in just before the attempt ends by itself. */
const askLate = command(
  'askLate',
  fc.tuple(pick, fc.constantFrom('pause', 'cancel'), fc.constantFrom(...kinds)),
  async ([n, act, wanted], model, real) => {
    const attempt = pickFrom(
      model.attempts.filter(({ job, lease }) => model.owns(lease, job)),
      n,
    );
    if (attempt === undefined) return;
    const { job, lease } = attempt;
    const told = await real.told((by) => acts[act](real.context.db, real.context.schema, { jobId: job.id, ...by }));
    if (!real.racing) expect(told).toBe(model[act](job));
    await settleOne(job, lease, wanted, model, real);
  },
);

const stopTarget = command('pauseTarget', pickTarget, async (targetId, model, real) => {
  await pauseTarget(real.context.db, real.context.schema, { targetId, actor: 'user:ann' });
  model.pauseTarget(targetId);
});

const goOn = command('resumeTarget', pickTarget, async (targetId, model, real) => {
  if (!model.isKnown(targetId)) return;
  await resumeTarget(real.context.db, real.context.schema, { targetId, actor: 'user:ann' });
  model.resumeTarget(targetId);
});

// What happens often is listed often.
export const engineCommands: fc.Arbitrary<Command>[] = [
  enqueueJobs,
  enqueueJobs,
  enqueueJobs,
  replay,
  claim,
  claim,
  claim,
  beat,
  end,
  endRunning,
  endRunning,
  endRunning,
  askLate,
  expireLease,
  sweepNothing,
  due,
  due,
  person('pause'),
  person('cancel'),
  person('skip'),
  person('resume'),
  person('resume'),
  person('resolve'),
  stopTarget,
  goOn,
  goOn,
];
