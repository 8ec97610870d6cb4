// What a handler asks a person: the options of `ask`, and the types of its answer. Types only.
import type { z } from 'zod';

export type NoFields = z.ZodObject<Record<never, never>>;

/** A button of the form: its name, or also what it sets. */
interface AskAction<S extends z.ZodObject = z.ZodObject, A extends string = string> {
  /** Is the answer's `action`. */
  name: A;
  /** On the button; by default the name. */
  label?: string;
  style?: 'primary' | 'danger';
  /** Fields of the answer that the button sets; the form does not show them. */
  answer?: Partial<z.input<S>>;
}

/** `S` the schema of the answer, `A` the names of the actions. */
export interface AskOptions<S extends z.ZodObject = z.ZodObject, A extends string = string> {
  title: string;
  /** What a person needs to decide: text, or an object that is shown as a list. */
  context?: unknown;
  /** Of the answer; the form is made from it. May be left out if there are actions. */
  schema?: S;
  /** Buttons: Approve, Reject. */
  actions?: readonly (A | AskAction<S, A>)[];
  /** Who should answer; shown, filtered by, and sent in webhooks. */
  assignees?: readonly string[];
  /** By default `QUESTION_TIMEOUT_SECONDS`. */
  timeoutSeconds?: number;
  /** When nobody answers in time: fail with QUESTION_EXPIRED (default), or continue with this answer. */
  onTimeout?: 'fail' | { answer?: z.input<S>; action?: A };
  /** Seconds after the question at which it sends `question.reminded`. */
  reminders?: readonly number[];
  /** Who is asked instead when nobody has answered by then. */
  escalateTo?: { assignees: readonly string[]; afterSeconds: number };
  /** Identifies this question among the durable calls of the job; by default its number in the order of questions. */
  name?: string;
}

export type AnswerOf<S extends z.ZodObject, A extends string> = [A] extends [never]
  ? z.output<S>
  : z.output<S> & { action: A };
