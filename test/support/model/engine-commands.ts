// The verbs of the engine as commands of a property test: each acts on the database through the real
// code and on the model, and compares what both say.
import fc from 'fast-check';
import { v7 as uuidv7 } from 'uuid';
import { expect } from 'vitest';
import { cancelJob, pauseJob, skipJob } from '../../../server/jobs/actions/pause-and-cancel.ts';
import { resolveJob, resumeJob } from '../../../server/jobs/actions/resume.ts';
import { claimJobs } from '../../../server/jobs/claim/claim.ts';
import { type LiveJob, type LiveRow, renewStatement, toLiveJob } from '../../../server/jobs/claim/lease.ts';
import { enqueue, type NewJob } from '../../../server/jobs/enqueue/enqueue.ts';
import { finishAttempts } from '../../../server/jobs/finish/finish.ts';
import type { Outcome } from '../../../server/jobs/finish/outcome.ts';
import { pauseTarget, resumeTarget } from '../../../server/jobs/lanes/target.ts';
import { priorities } from '../../../server/jobs/model/job.ts';
import type { EngineDriver } from './engine-driver.ts';
import type { EngineModel, ModelJob, ModelLease, NewModelJob } from './engine-model.ts';

const error = { code: 'X', message: 'x' };
const hourMs = 3_600_000;

export type Command = fc.AsyncCommand<EngineModel, EngineDriver>;
type Run<T> = (given: T, model: EngineModel, real: EngineDriver) => Promise<void>;

export function command<T>(name: string, given: fc.Arbitrary<T>, run: Run<T>): fc.Arbitrary<Command> {
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
export const pick = fc.nat(1000);
const pickTarget = fc.constantFrom(...targets);
export const pickFrom = <T>(all: readonly T[], n: number): T | undefined => all[n % Math.max(1, all.length)];

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

async function beatOf({ context: { db, schema } }: EngineDriver, leaseId: string): Promise<LiveJob[]> {
  const { text, values } = renewStatement(schema, [leaseId], 3600);
  return (await db.query<LiveRow>(text, values)).map(toLiveJob);
}

const beat = command('beat', pick, async (n, model, real) => {
  const lease = pickFrom(model.leases, n);
  if (lease === undefined) return;
  const live = await beatOf(real, lease.id);
  if (real.racing) return;
  const expected = lease.jobs.filter((job) => model.owns(lease, job)).map((job) => [job.id, job.intent]);
  expect(live.map((job) => [job.jobId, job.cancelIntent]).sort()).toEqual(expected.sort());
});

const kinds = [
  'complete',
  'completePartly',
  'retry',
  'fail',
  'stopPaused',
  'stopCanceled',
  'requeue',
  'suspend',
  'suspendAside',
] as const;
type Kind = (typeof kinds)[number];

/** Of any attempt that ever was: most are zombies by then, and refused. */
const end = command('end', fc.tuple(pick, fc.constantFrom(...kinds)), async ([n, wanted], model, real) => {
  const attempt = pickFrom(model.attempts, n);
  if (attempt === undefined) return;
  const { job, lease } = attempt;
  await finishOne(job, lease, wanted, model, real);
});

const endRunning = command('finish', fc.tuple(pick, fc.constantFrom(...kinds)), async ([n, wanted], model, real) => {
  const attempt = pickFrom(
    model.attempts.filter(({ job, lease }) => model.owns(lease, job)),
    n,
  );
  if (attempt) await finishOne(attempt.job, attempt.lease, wanted, model, real);
});

/**
 * Some attempts end in one transaction that also takes the next of the lanes that they free, for a
 * worker with so much room that runs such jobs or does not. Which lanes go first is not promised.
 */
const endAndTake = command(
  'finishAndTake',
  fc.record({
    picks: fc.array(fc.tuple(pick, fc.constantFrom(...kinds)), { minLength: 1, maxLength: 4 }),
    limit: fc.integer({ min: 1, max: 3 }),
    handled: fc.nat(4).map((n) => n > 0),
  }),
  async ({ picks, limit, handled }, model, real) => {
    const owned = model.attempts.filter(({ job, lease }) => real.racing || model.owns(lease, job));
    const chosen = new Map<ModelJob, { lease: ModelLease; kind: Kind }>();
    for (const [n, wanted] of picks) {
      const attempt = pickFrom(owned, n);
      if (attempt === undefined) return;
      chosen.set(attempt.job, { lease: attempt.lease, kind: possible(wanted, attempt.job, model, real) });
    }
    const heads = new Map([...chosen.keys()].map(({ target }) => [target, model.startable(target)]));
    const items = [...chosen].map(([job, { lease, kind }]) => {
      return { jobId: job.id, leaseId: lease.id, targetId: job.target, outcome: outcomes[kind] };
    });
    const request = {
      owner: 'next',
      limit,
      leaseSeconds: 3600,
      leaseId: uuidv7(),
      types: [handled ? 'test' : 'other'],
    };
    const { db, schema } = real.context;
    const { accepted, claimed } = await finishAttempts(db, schema, items, { actor: 'worker:test', claimNext: request });
    if (real.racing) return void (claimed && model.adopt(claimed));
    // Each kind of outcome is one statement. The model applies them one by one, with the same result for lanes.
    for (const [job, { lease, kind }] of chosen) expect(accepted.has(job.id)).toBe(model.complete(lease, job, kind));
    const next = [...heads].flatMap(([target, before]) => {
      const head = model.startable(target);
      const freed = head !== undefined && head !== before && !chosen.has(head);
      return handled && freed ? [head] : [];
    });
    const taken = claimed?.jobs.map(({ id }) => next.find((job) => job.id === id)) ?? [];
    expect(taken).not.toContain(undefined);
    expect(taken).toHaveLength(Math.min(limit, next.length));
    model.start(taken as ModelJob[], request.leaseId);
  },
);

/** The worker retries only while attempts are left. */
function possible(wanted: Kind, job: ModelJob, model: EngineModel, real: EngineDriver): Kind {
  return wanted === 'retry' && (real.racing || !model.hasAttemptsLeft(job)) ? 'fail' : wanted;
}

async function finishOne(
  job: ModelJob,
  lease: ModelLease,
  wanted: Kind,
  model: EngineModel,
  real: EngineDriver,
): Promise<void> {
  const kind = possible(wanted, job, model, real);
  const item = { jobId: job.id, leaseId: lease.id, targetId: job.target, outcome: outcomes[kind] };
  const { accepted } = await finishAttempts(real.context.db, real.context.schema, [item], { actor: 'worker:test' });
  if (real.racing) return;
  expect(accepted.has(job.id)).toBe(model.complete(lease, job, kind));
}

const waiting = { kind: 'sleep', step: 'sleep#1', until: '2199-01-01T00:00:00.000Z' } as const;
const outcomes: Record<Kind, Outcome> = {
  suspend: { kind: 'suspend', waiting, leftMs: hourMs },
  suspendAside: { kind: 'suspendAside', waiting: { ...waiting, lane: 'released' }, leftMs: hourMs },
  complete: { kind: 'complete', result: { ok: true } },
  completePartly: { kind: 'completePartly', result: 1, error },
  retry: { kind: 'retry', error, delayMs: hourMs },
  fail: { kind: 'fail', error },
  stopPaused: { kind: 'stopPaused', message: 'paused' },
  stopCanceled: { kind: 'stopCanceled', message: 'canceled' },
  requeue: { kind: 'requeue', reason: 'drained' },
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
    await beatOf(real, lease.id);
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
    const reported = await real.reported((by) =>
      acts[act](real.context.db, real.context.schema, { jobId: job.id, ...by }),
    );
    if (!real.racing) expect(reported).toBe(model[act](job));
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
    const reported = await real.reported((by) =>
      acts[act](real.context.db, real.context.schema, { jobId: job.id, ...by }),
    );
    if (!real.racing) expect(reported).toBe(model[act](job));
    await finishOne(job, lease, wanted, model, real);
  },
);

const stopTarget = command('pauseTarget', pickTarget, async (targetId, model, real) => {
  await pauseTarget(real.context.db, real.context.schema, { targetId, actor: 'user:ann' });
  model.pauseTarget(targetId);
});

const proceed = command('resumeTarget', pickTarget, async (targetId, model, real) => {
  if (!model.isKnown(targetId)) return;
  await resumeTarget(real.context.db, real.context.schema, { targetId, actor: 'user:ann' });
  model.resumeTarget(targetId);
});

// Frequent commands are listed several times.
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
  endAndTake,
  endAndTake,
  endAndTake,
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
  proceed,
  proceed,
];

/** Those between which durable calls are made: jobs start and are stopped, lost or resumed, and few of them end. */
export const startAndStopCommands: fc.Arbitrary<Command>[] = [
  enqueueJobs,
  claim,
  claim,
  claim,
  endRunning,
  expireLease,
  due,
  person('pause'),
  person('resume'),
  person('resume'),
  person('cancel'),
  proceed,
];
