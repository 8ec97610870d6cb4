// Creates the argument of a remote worker's handler: the job, and the functions of durable calls, which reject with
// `Stopped` when the handler must end.

import type { AskOptions } from '../durable/ask-options.ts';
import { askPerson, askQuestion } from '../durable/asking.ts';
import { DurableCalls } from '../durable/durable-calls.ts';
import { DurableFunctions, type DurableParts } from '../durable/durable-functions.ts';
import { JobStopped } from '../durable/stop-reason.ts';
import { checkQuestion } from '../jobs/questions/answer-schema.ts';
import { questionRequest } from '../jobs/questions/question-request.ts';
import { parseFields } from '../kernel/fields.ts';
import type { HeldLease } from './held-lease.ts';
import type { RemoteQuestion, Work } from './work.ts';

export function createWork(held: HeldLease, parts: DurableParts): Work {
  const { job, leaseId, stop } = held;
  const calls = new DurableFunctions(parts);
  // biome-ignore lint/suspicious/noExplicitAny: each function keeps its own type.
  const stoppable = <F extends (...given: any[]) => Promise<unknown>>(call: F): F =>
    (async (...given: Parameters<F>) => {
      try {
        return await call(...given);
      } catch (error) {
        throw error instanceof JobStopped && stop.signal.aborted ? stop.signal.reason : error;
      }
    }) as F;
  return {
    job,
    leaseId,
    signal: stop.signal,
    report: (progress, message) => void Object.assign(held, { progress, message }),
    step: stoppable(calls.step),
    sleepFor: stoppable(calls.sleepFor),
    sleepUntil: stoppable(calls.sleepUntil),
    ask: stoppable(async (question: AskOptions | RemoteQuestion) => ask(parts, question)) as Work['ask'],
    waitForEvent: stoppable(calls.waitForEvent),
    enqueue: stoppable(calls.enqueue),
    fanOut: stoppable(calls.fanOut) as Work['fanOut'],
    waitForChildren: stoppable(calls.waitForChildren) as Work['waitForChildren'],
    addUsage: stoppable(calls.addUsage),
  };
}

function ask(parts: DurableParts, question: AskOptions | RemoteQuestion): Promise<unknown> {
  parts.durable ??= new DurableCalls(parts);
  if (!isRaw(question)) return askPerson(parts.durable, question);
  const { name, ...asked } = question;
  return askQuestion(parts.durable, {
    name,
    question: checkQuestion(parseFields(questionRequest, asked, 'ask'), { trusted: false }),
    parse: ({ answer, action }) => (action === undefined ? answer : { ...answer, action }),
  });
}

/** True for options with a JSON Schema or a field of the API. Without any of them, both kinds mean the same. */
function isRaw(question: AskOptions | RemoteQuestion): question is RemoteQuestion {
  const { schema } = question;
  if (schema !== undefined) return !('safeParse' in schema);
  return ['timeout_seconds', 'on_timeout', 'escalate_to'].some((field) => field in question);
}
