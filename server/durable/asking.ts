// The durable call `ask`: converts the options to the question that is stored, and its answer to the value that the
// handler gets.

import type { StepCall, StoredStep } from '../jobs/attempt/steps.ts';
import type { JobErrorCode } from '../jobs/model/job-errors.ts';
import type { JobError } from '../jobs/model/job-values.ts';
import { checkQuestion, toAnswerSchema } from '../jobs/questions/answer-schema.ts';
import {
  type AskedQuestion,
  type GivenAnswer,
  type QuestionInput,
  questionRequest,
} from '../jobs/questions/question-request.ts';
import { errorMessage } from '../kernel/errors.ts';
import { parseFields } from '../kernel/fields.ts';
import type { AskOptions } from './ask-options.ts';
import { type DurableCalls, rebuild } from './durable-calls.ts';
import { Fatal } from './handler-errors.ts';

/** A question as a handler asks it. */
export interface Asking {
  name: string | undefined;
  question: AskedQuestion;
  /** Throws if the handler's own schema refuses the answer. */
  parse(given: GivenAnswer): unknown;
}

/** Asks a person once. A later run finds the same question, and its answer when there is one. */
export function askPerson(calls: DurableCalls, options: AskOptions): Promise<unknown> {
  return askQuestion(calls, toAsking(options));
}

export function askQuestion(calls: DurableCalls, { name, question, parse }: Asking): Promise<unknown> {
  return calls.call('question', name ?? calls.numbered('question'), async (call, stored) => {
    calls.unanswered.add(call.name);
    for (;;) {
      const state = isEnded(stored) ? stored : await calls.store.openQuestion(call, question);
      if (state.status !== 'open') calls.unanswered.delete(call.name);
      if (state.status === 'failed') throw calls.remember(rebuild(state.error), call);
      if (state.status === 'completed') {
        try {
          return parse(state.result as GivenAnswer);
        } catch (error) {
          throw calls.remember(refused(call, error), call);
        }
      }
      const { questionId, until, leftMs, wakeMs } = state;
      await calls.wait({ kind: 'question', step: call.name, until, question: questionId }, leftMs, wakeMs);
    }
  });
}

type EndedStep = StoredStep & ({ status: 'completed' } | { status: 'failed'; error: JobError });

function isEnded(stored: StoredStep | undefined): stored is EndedStep {
  return stored?.status === 'completed' || (stored?.status === 'failed' && stored.error !== null);
}

/** An answer that only the handler's own schema refuses fails the run; the next run asks again. */
function refused({ name }: StepCall, error: unknown): Fatal {
  const message = `The answer to ${name} does not fit: ${errorMessage(error)}`;
  return new Fatal(message, { code: 'ANSWER_REFUSED' satisfies JobErrorCode });
}

/** Throws a problem that names the field if the options are not valid. */
function toAsking(options: AskOptions): Asking {
  const { schema } = options;
  const input: QuestionInput = {
    title: options.title,
    context: options.context,
    ...(schema !== undefined && { schema: toAnswerSchema(schema) }),
    actions: (options.actions ?? []).map((action) => (typeof action === 'string' ? { name: action } : { ...action })),
    assignees: [...(options.assignees ?? [])],
    timeout_seconds: options.timeoutSeconds,
    on_timeout: options.onTimeout,
    reminders: [...(options.reminders ?? [])],
    escalate_to: options.escalateTo && {
      assignees: [...options.escalateTo.assignees],
      after_seconds: options.escalateTo.afterSeconds,
    },
  };
  // A JSON copy without undefined values, which a thread can send.
  const copy: unknown = JSON.parse(JSON.stringify(input));
  return {
    name: options.name,
    question: checkQuestion(parseFields(questionRequest, copy, 'ask'), { trusted: true }),
    parse: ({ answer, action }) => {
      const value = schema === undefined ? answer : schema.parse(Object.assign(Object.create(null), answer));
      return action === undefined ? value : { ...(value as object), action };
    },
  };
}
