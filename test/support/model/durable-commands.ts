// Durable calls of handlers as commands of a property test: stored steps, questions and their answers, events from
// outside and their deliveries, and time that passes. Commands run one after the other, so the model predicts the exact
// result; wait-commands.ts has the concurrent ones.
import fc from 'fast-check';
import { expect } from 'vitest';
import { openEventWait } from '../../../server/jobs/attempt/event-waits.ts';
import { loadSteps } from '../../../server/jobs/attempt/load-steps.ts';
import { saveSteps } from '../../../server/jobs/attempt/save-steps.ts';
import { queueDueJobs } from '../../../server/jobs/finish/due-jobs.ts';
import { finishAttempts } from '../../../server/jobs/finish/finish.ts';
import type { Outcome } from '../../../server/jobs/finish/outcome.ts';
import { isTerminal } from '../../../server/jobs/model/states.ts';
import { foreverMs } from '../../../server/jobs/model/waiting.ts';
import { answerQuestion } from '../../../server/jobs/questions/answer.ts';
import { openQuestion } from '../../../server/jobs/questions/ask.ts';
import { deliverEvents } from '../../../server/jobs/received/deliver-events.ts';
import { receiveEvent } from '../../../server/jobs/received/receive-event.ts';
import { Problem } from '../../../server/kernel/errors.ts';
import { plainQuestion } from '../questions.ts';
import { defaultAnswer, type ModelCall, openCall } from './durable-model.ts';
import { type Command, command, pick, pickFrom } from './engine-commands.ts';
import type { EngineDriver } from './engine-driver.ts';
import type { EngineModel, ModelJob, ModelLease } from './engine-model.ts';

const actor = 'worker:test';
const match = { fits: true };
const answerSchema = { type: 'object', properties: { n: { type: 'integer' } }, additionalProperties: false };

/** How often each of these was seen, for the test to print. */
export const seen: Record<string, number> = {};
function count(what: string): void {
  seen[what] = (seen[what] ?? 0) + 1;
}

const plan = fc.record({
  kind: fc.constantFrom<ModelCall['kind'][]>('step', 'question', 'question', 'event', 'event'),
  isSpecial: fc.boolean(),
  isLimited: fc.boolean(),
});

/** A run reads what is stored and makes its next call; if that waits, the job is suspended. Others may end the wait just before. */
const run = command(
  'run',
  fc.record({
    n: pick,
    plan,
    isAny: fc.nat(6).map((n) => n === 0),
    suspends: fc.constantFrom<(Outcome['kind'] | undefined)[]>('suspend', 'suspend', 'suspendAside', undefined),
    isLate: fc.nat(4).map((n) => n === 0),
  }),
  async (given, model, real) => {
    const attempts = model.attempts.filter(({ job, lease }) => given.isAny || model.owns(lease, job));
    const attempt = pickFrom(attempts, given.n);
    if (attempt === undefined) return;
    const { job, lease } = attempt;
    const isOwner = model.owns(lease, job);
    await expectStored(job, lease, isOwner, real);
    const call = model.durable.nextCall(job, given.plan);
    if (isOwner) model.durable.reach(job, call, { n: given.n });
    else count('call under a stale lease');
    const state = await makeCall(job, lease, call, { n: given.n }, model, real);
    if (!isOwner) return expect(state).toBeUndefined();
    expect(state).toEqual({ status: call.status, result: call.result });
    count(`${call.kind} ${call.status}`);
    if (call.status !== 'open' || given.suspends === undefined) return;
    if (given.isLate) {
      count(`${call.kind} ended before the job is suspended`);
      await (call.kind === 'event' ? send(job, true, model, real) : answer(job, call, given.n, model, real));
    }
    await suspend(job, lease, call, given.suspends, model, real);
  },
);

async function expectStored(job: ModelJob, lease: ModelLease, isOwner: boolean, { context }: EngineDriver) {
  const loaded = await loadSteps(context.db, context.schema, { jobId: job.id, leaseId: lease.id });
  if (!isOwner) return expect(loaded).toBeUndefined();
  expect(loaded?.stop.cancelIntent).toBe(job.intent);
  expect(loaded?.steps.map(({ name, kind, result }) => ({ name, kind, result: resultOf(kind, result) }))).toEqual(
    job.calls.map(({ name, kind, result }) => ({ name, kind, result })),
  );
  if (job.calls.some(({ kind, status }) => kind === 'step' && status === 'completed')) count('step read again');
}

function resultOf(kind: string, result: unknown): unknown {
  return kind === 'event' ? ((result as { id: string } | null)?.id ?? null) : result;
}

type CallState = Pick<ModelCall, 'status' | 'result'> | undefined;

async function makeCall(
  job: ModelJob,
  lease: ModelLease,
  { name, kind, plan: { isSpecial, isLimited } }: ModelCall,
  value: unknown,
  model: EngineModel,
  { context: { db, schema } }: EngineDriver,
): Promise<CallState> {
  const held = { jobId: job.id, leaseId: lease.id };
  const call = { name, position: Number(name.split('#')[1]), parallel: false };
  if (kind === 'step') {
    const end = { ...call, status: 'completed' as const, result: value, tries: 1, ms: 1 };
    const save = () => saveSteps(db, schema, [{ held, changes: [end], actor }]);
    const isSaved = (await save()).size === 1;
    // The answer was lost: it is stored once.
    expect((await save()).size === 1).toBe(isSaved);
    if (!isSaved) return undefined;
    return { status: 'completed', result: value };
  }
  if (kind === 'question') {
    const timeout = isSpecial ? { answer: defaultAnswer } : ('fail' as const);
    const asked = { ...plainQuestion, schema: answerSchema, timeout_seconds: 86_400, on_timeout: timeout };
    const state = await openQuestion(db, schema, held, call, asked, actor);
    return state && { status: state.status, result: state.status === 'completed' ? state.result : null };
  }
  const wanted = {
    event: model.durable.eventName(job),
    match: isSpecial ? match : null,
    ms: isLimited ? 86_400_000 : null,
  };
  const state = await openEventWait(db, schema, held, call, wanted, actor);
  if (state?.kind === 'received') return { status: 'completed', result: state.event.id };
  return state && { status: state.kind === 'open' ? 'open' : 'skipped', result: null };
}

async function suspend(
  job: ModelJob,
  lease: ModelLease,
  { name, kind }: ModelCall,
  as: Outcome['kind'],
  model: EngineModel,
  real: EngineDriver,
): Promise<void> {
  if (kind === 'step' || (as !== 'suspend' && as !== 'suspendAside')) return;
  const { db, schema } = real.context;
  const waiting = { kind, step: name, ...(as === 'suspendAside' && { lane: 'released' as const }) };
  const outcome: Outcome = { kind: as, waiting, leftMs: foreverMs, awaited: { steps: [name] } };
  const item = { jobId: job.id, leaseId: lease.id, targetId: job.target, outcome };
  const { accepted } = await finishAttempts(db, schema, [item], { actor });
  expect(accepted.has(job.id)).toBe(model.suspendFor(lease, job, kind, as));
  if (openCall(job) || job.status !== 'WAITING') return;
  // A wait that has already ended makes the job due at once.
  expect(await queueDueJobs(db, schema, actor)).toBe(1);
  model.wake([job]);
}

/** Sends an event twice, under one id. Each job that waits for it gets it once. */
async function send(job: ModelJob, fits: boolean, model: EngineModel, { context: { db, schema } }: EngineDriver) {
  const event = { id: `e${model.durable.received.length}`, name: model.durable.eventName(job), data: { fits } };
  expect(await receiveEvent(db, schema, event, 'test')).toMatchObject({ id: event.id, replayed: false });
  const before = model.jobs.filter((other) => openCall(other));
  const woken = model.durable.receive({ ...event, fits }, model.jobs);
  const ended = before.filter((other) => !openCall(other)).length;
  count(`event for ${ended > 1 ? 'several jobs' : ended === 1 ? 'one job' : 'no job yet'}`);
  expect(await deliverEvents(db, schema, 'test')).toEqual({ woken: woken.length, more: false });
  expect(await receiveEvent(db, schema, event, 'test')).toMatchObject({ id: event.id, replayed: true });
  expect(await deliverEvents(db, schema, 'test')).toEqual({ woken: 0, more: false });
  model.wake(woken);
}

const receive = command('receive', fc.tuple(pick, fc.nat(3)), async ([n, wrong], model, real) => {
  const job = pickFrom(model.jobs, n);
  if (job !== undefined) await send(job, wrong !== 0, model, real);
});

/** Accepted once, while the question is open; later answers are refused and see the first. */
async function answer(job: ModelJob, call: ModelCall, n: number, model: EngineModel, { context }: EngineDriver) {
  const { db, schema } = context;
  const [{ id: questionId } = { id: '' }] = await db.query<{ id: string }>(
    `select id from ${schema}.questions where job_id = $1 and step = $2`,
    [job.id, call.name],
  );
  const give = (given: object) =>
    answerQuestion(db, schema, { questionId, answer: { ...given }, actor: 'user:ann', author: 'ann' }).then(
      (question) => ({ question }),
      (error: unknown) => ({ refused: error instanceof Problem ? { ...error.extra, http: error.httpStatus } : error }),
    );
  const status = model.durable.questionStatus(job, call);
  if (status === 'open') {
    count(`answer while ${job.status}`);
    expect(await give({ n: 'none' })).toMatchObject({ refused: { http: 400 } });
    expect(await give({ n })).toMatchObject({ question: { status: 'answered', answer: { n }, answeredBy: 'ann' } });
    model.durable.answer(call, { n }, 'ann');
    if (job.status === 'WAITING') model.wake([job]);
  } else count(`answer refused: ${status}`);
  const first = { answer: call.question?.answer, answered_by: call.question?.by };
  const closed = { http: 409, question_status: model.durable.questionStatus(job, call), ...first };
  expect(await give({ n: n + 1 })).toMatchObject({ refused: closed });
}

const answerAny = command('answer', fc.tuple(pick, fc.nat(2)), async ([n, any], model, real) => {
  const asked = model.jobs.flatMap((job) =>
    job.calls.filter(({ question }) => question).map((call) => ({ job, call, isOpen: call.status === 'open' })),
  );
  const open = asked.filter(({ isOpen }) => isOpen);
  const chosen = pickFrom(any === 0 || open.length === 0 ? asked : open, n);
  if (chosen) await answer(chosen.job, chosen.call, n, model, real);
});

/** The time of an open wait is over. A job that is suspended in it wakes; another finds out when it makes the call. */
const passTime = command('passTime', pick, async (n, model, real) => {
  const { db, schema } = real.context;
  const waiting = model.jobs.flatMap((job) => {
    const call = isTerminal(job.status) ? undefined : openCall(job);
    return call && (call.kind === 'question' || call.plan.isLimited) ? [{ job, call }] : [];
  });
  const chosen = pickFrom(waiting, n);
  if (chosen === undefined) return;
  const { job, call } = chosen;
  // Further back than any hold of the test lasts, which moves the time of questions.
  const past = `now() - interval '12 h'`;
  const values = [job.id, call.name];
  await db.query(`update ${schema}.phases set waits_until = ${past} where job_id = $1 and name = $2`, values);
  await db.query(`update ${schema}.questions set expires_at = ${past} where job_id = $1 and step = $2`, values);
  call.isOver = true;
  count(`${call.kind} over while ${job.status}`);
  if (job.status !== 'WAITING' || job.waitsFor !== call.kind) return;
  if (call.kind === 'question') model.durable.expireQuestion(call);
  await real.makeDue(job.id);
  model.wake([job]);
});

export const durableCommands: fc.Arbitrary<Command>[] = [
  run,
  run,
  run,
  run,
  run,
  receive,
  receive,
  answerAny,
  answerAny,
  passTime,
];
