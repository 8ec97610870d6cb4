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
import { parseDuration } from '../kernel/clock.ts';
import { errorMessage, Problem } from '../kernel/errors.ts';
import { type FieldError, invalidFields, parseFields } from '../kernel/fields.ts';
import type { AskOptions, EscalateTo } from './ask-options.ts';
import { refuseUnknownOptions, secondsOf, timeoutSecondsOf } from './call-options.ts';
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

const askOptions: readonly (keyof AskOptions)[] = [
  'title',
  'context',
  'schema',
  'actions',
  'assignees',
  'timeout',
  'timeoutSeconds',
  'onTimeout',
  'reminders',
  'escalateTo',
  'name',
];

/** Throws an error that names the option if the options are not valid. */
function toAsking(options: AskOptions): Asking {
  refuseUnknownOptions('ask', options, askOptions);
  const { schema, actions, reminders, escalateTo } = options;
  if (schema !== undefined && !('_zod' in Object(schema))) {
    throw new TypeError('schema of ask must be a zod object: z.object({ approve: z.boolean() }), with z of leasehold');
  }
  const input: Unchecked<QuestionInput> = {
    title: options.title,
    context: options.context,
    ...(schema !== undefined && { schema: answerSchemaOf(schema) }),
    actions: mapList(actions, (action) => (typeof action === 'string' ? { name: action } : action)),
    assignees: options.assignees,
    timeout_seconds: timeoutSecondsOf('ask', options),
    on_timeout: options.onTimeout,
    reminders: mapList(reminders, (after, at) =>
      typeof after === 'string' ? parseDuration(after, `ask.reminders[${at}]`) / 1000 : after,
    ),
    escalate_to: typeof escalateTo === 'object' ? toEscalation(escalateTo) : escalateTo,
  };
  // A JSON copy without undefined values, which a thread can send.
  const copy: unknown = JSON.parse(JSON.stringify(input));
  return {
    name: options.name,
    question: withNamesOfOptions(() => checkQuestion(parseFields(questionRequest, copy), { trusted: true })),
    parse: ({ answer, action }) => {
      const value = schema === undefined ? answer : schema.parse(Object.assign(Object.create(null), answer));
      return action === undefined ? value : { ...(value as object), action };
    },
  };
}

/** Values of any type, which the schema of the question refuses by name. */
type Unchecked<T> = { [K in keyof T]: unknown };

function mapList<T>(list: readonly T[] | undefined, map: (item: T, at: number) => unknown): unknown {
  return Array.isArray(list) ? list.map(map) : list;
}

function toEscalation(escalateTo: EscalateTo): unknown {
  const { assignees, after, afterSeconds } = escalateTo;
  refuseUnknownOptions('escalateTo of ask', escalateTo, ['assignees', 'after', 'afterSeconds']);
  return { assignees, after_seconds: secondsOf('ask.escalateTo', ['after', after], ['afterSeconds', afterSeconds]) };
}

function answerSchemaOf(schema: NonNullable<AskOptions['schema']>): Record<string, unknown> {
  try {
    return toAnswerSchema(schema);
  } catch (error) {
    throw new TypeError(`schema of ask has a field that no form can show: ${errorMessage(error)}`);
  }
}

const namesOfOptions: Record<string, string> = {
  timeout_seconds: 'timeout',
  on_timeout: 'onTimeout',
  escalate_to: 'escalateTo',
  after_seconds: 'after',
};

/** A problem names the fields as the handler wrote them: `ask.escalateTo.after`. */
function withNamesOfOptions<T>(check: () => T): T {
  try {
    return check();
  } catch (error) {
    if (!(error instanceof Problem) || error.code !== 'INVALID_FIELD') throw error;
    const errors = error.extra.errors as FieldError[];
    throw invalidFields(
      errors.map(({ field, message }) => ({
        field: `ask.${field.replaceAll(/[a-z]+_[a-z]+/g, (name) => namesOfOptions[name] ?? name)}`,
        message,
      })),
    );
  }
}
