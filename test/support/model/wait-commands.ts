// The waits that others end, as commands of a property test: questions and their answers, events from outside and their
// deliveries. Every second job asks, the others wait for events. For many at once: nothing is known about what they lead
// to; durable-commands.ts has the same with what the model says.
import fc from 'fast-check';
import { openEventWait } from '../../../server/jobs/attempt/event-waits.ts';
import { finishAttempts } from '../../../server/jobs/finish/finish.ts';
import type { Outcome } from '../../../server/jobs/finish/outcome.ts';
import { foreverMs } from '../../../server/jobs/model/waiting.ts';
import { answerQuestion } from '../../../server/jobs/questions/answer.ts';
import { openQuestion } from '../../../server/jobs/questions/ask.ts';
import { deliverEvents } from '../../../server/jobs/received/deliver-events.ts';
import { receiveEvent } from '../../../server/jobs/received/receive-event.ts';
import { plainQuestion } from '../questions.ts';
import { type Command, command, pick, pickFrom } from './engine-commands.ts';
import type { EngineDriver } from './engine-driver.ts';
import type { EngineModel, ModelJob, ModelLease } from './engine-model.ts';

const call = { name: 'wait#1', position: 0, parallel: false };
const question = { ...plainQuestion, timeout_seconds: 86_400 };
const actor = 'worker:test';
const eventOf = ({ id }: ModelJob) => `event-${id}`;

/** Every second job asks a person, the others wait for an event. */
const asks = (model: EngineModel, job: ModelJob) => model.jobs.indexOf(job) % 2 === 0;

/** A run opens its wait, and is suspended if it is still open. Between the two, others may end the wait. */
const wait = (between: boolean) =>
  command(between ? 'waitLate' : 'wait', fc.tuple(pick, fc.boolean()), async ([n, suspends], model, real) => {
    const attempt = pickFrom(model.attempts, n);
    if (attempt === undefined) return;
    const { job, lease } = attempt;
    const isOpen = await (asks(model, job) ? ask(job, lease, real) : awaitEvent(job, lease, real));
    if (isOpen !== true || !suspends) return;
    if (between) await end(job, model, real);
    const kind = asks(model, job) ? ('question' as const) : ('event' as const);
    const waiting = { kind, step: call.name, ...(kind === 'event' && { event: eventOf(job) }) };
    const outcome: Outcome = { kind: 'suspend', waiting, leftMs: foreverMs, awaited: { steps: [call.name] } };
    const item = { jobId: job.id, leaseId: lease.id, targetId: job.target, outcome };
    await finishAttempts(real.context.db, real.context.schema, [item], { actor });
  });

async function ask(job: ModelJob, lease: ModelLease, { context: { db, schema } }: EngineDriver) {
  const held = { jobId: job.id, leaseId: lease.id };
  const state = await openQuestion(db, schema, held, call, question, actor);
  return state && state.status === 'open';
}

async function awaitEvent(job: ModelJob, lease: ModelLease, { context: { db, schema } }: EngineDriver) {
  const held = { jobId: job.id, leaseId: lease.id };
  const wanted = { event: eventOf(job), match: null, ms: null };
  const state = await openEventWait(db, schema, held, call, wanted, actor);
  return state && state.kind === 'open';
}

/** Ends the wait of the job: a person answers, or its event arrives. */
async function end(job: ModelJob, model: EngineModel, real: EngineDriver): Promise<void> {
  const { db, schema } = real.context;
  if (!asks(model, job)) {
    await receiveEvent(db, schema, { name: eventOf(job) }, 'test');
    await deliverEvents(db, schema, 'test');
    return;
  }
  const [open] = await db.query<{ id: string }>(
    `select id from ${schema}.questions where job_id = $1 and status = 'open'`,
    [job.id],
  );
  if (open === undefined) return;
  await real.reported(async (by) => {
    await answerQuestion(db, schema, { questionId: open.id, answer: {}, ...by });
    return { done: true };
  });
}

const endWait = command('endWait', pick, async (n, model, real) => {
  const job = pickFrom(model.jobs, n);
  if (job !== undefined) await end(job, model, real);
});

export const waitCommands: fc.Arbitrary<Command>[] = [wait(false), wait(false), wait(true), endWait, endWait];
