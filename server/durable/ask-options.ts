// The options of `ask`, and the types of its answer. Types only.
import type { z } from 'zod';
import type { Duration } from '../kernel/clock.ts';
import type { CallTimeout } from './call-options.ts';

export type NoFields = z.ZodObject<Record<never, never>>;

/** A button of the form: its name, or an object with the fields that it sets. */
interface AskAction<S extends z.ZodObject = z.ZodObject, A extends string = string> {
  /** Becomes the answer's `action`. */
  name: A;
  /** The label of the button; by default the name. */
  label?: string;
  style?: 'primary' | 'danger';
  /** Fields of the answer that the button sets; the form does not show them. */
  answer?: Partial<z.input<S>>;
}

export interface EscalateTo {
  assignees: readonly string[];
  /** `'1d'`, `'1h30m'`, or milliseconds. */
  after?: Duration | undefined;
  afterSeconds?: number | undefined;
}

/** `S` is the schema of the answer, `A` the names of the actions. The default timeout is `QUESTION_TIMEOUT_SECONDS`. */
export interface AskOptions<S extends z.ZodObject = z.ZodObject, A extends string = string> extends CallTimeout {
  title: string;
  /** The information that a person needs to decide: text, or an object that is shown as a list. */
  context?: unknown;
  /** The schema of the answer, from which the form is made. Optional if there are actions. */
  schema?: S;
  /** Buttons, such as Approve and Reject. */
  actions?: readonly (A | AskAction<S, A>)[];
  /** Who should answer. It is shown, can be filtered by, and is sent in webhooks. */
  assignees?: readonly string[];
  /** If nobody answers in time: fail with QUESTION_EXPIRED (default), or continue with this answer. */
  onTimeout?: 'fail' | { answer?: z.input<S>; action?: A };
  /** The times after the question at which it sends `question.reminded`: `'4h'`, or a number of seconds. */
  reminders?: readonly (string | number)[];
  /** Who is asked instead if nobody has answered `after` this time, as a duration or in seconds. */
  escalateTo?: EscalateTo;
  /** Identifies this question among the durable calls of the job; by default its number in the order of questions. */
  name?: string;
}

export type AnswerOf<S extends z.ZodObject, A extends string> = [A] extends [never]
  ? z.output<S>
  : z.output<S> & { action: A };
