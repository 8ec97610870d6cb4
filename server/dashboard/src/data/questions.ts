// Questions to people: the types of the API, and sending what was entered in a form.
import type { FormField } from '../../../forms/answer-fields.ts';
import { answerOf } from '../../../forms/entered-answer.ts';
import { toast } from '../parts/shell/toasts.tsx';
import { named } from './actions.ts';
import { type ApiError, api, enc } from './api.ts';

export interface Question {
  id: string;
  job_id: string;
  /** The durable call that waits; empty if a budget has stopped the job. */
  step: string;
  target_id: string | null;
  title: string;
  context: unknown;
  schema: Record<string, unknown>;
  actions: { name: string; label?: string; style?: 'primary' | 'danger'; answer?: Record<string, unknown> }[];
  assignees: string[];
  status: 'open' | 'answered' | 'expired' | 'canceled';
  asked_at: string;
  /** Null if it never expires, such as the question of a budget. */
  expires_at: string | null;
  answer: Record<string, unknown> | null;
  action: string | null;
  answered_by: string | null;
  closed_at: string | null;
}

/** Fields as the form calls them: `answer.dueDate: is required` → `Due date: is required`. */
export function describeRefusal(
  { message, problem }: Pick<ApiError, 'message' | 'problem'>,
  fields: readonly Pick<FormField, 'name' | 'label'>[],
): string {
  const errors = problem.errors as { field: string; message: string }[] | undefined;
  if (errors === undefined) return message;
  const labels = new Map(fields.map(({ name, label }) => [`answer.${name}`, label]));
  const labelOf = (field: string) => labels.get(field) ?? labels.get(field.replace(/\[\d+\]$/, '')) ?? field;
  return errors.map(({ field, message }) => `${labelOf(field)}: ${message}`).join('; ');
}

/** Times are entered in the zone of the browser, and sent in UTC. */
export function readAnswer(fields: readonly FormField[], form: FormData): Record<string, unknown> {
  const entered = fields.map(({ name, kind }) => {
    const values = form.getAll(`field.${name}`).map(String);
    return [name, kind === 'dateTime' ? values.map(toUtc) : values] as const;
  });
  return answerOf(fields, Object.fromEntries(entered));
}

function toUtc(local: string): string {
  return Number.isNaN(Date.parse(local)) ? local : new Date(local).toISOString().replace('.000Z', 'Z');
}

/** The value for a control that shows the time in the zone of the browser. */
export function toLocal(time: string): string {
  const at = Date.parse(time);
  if (Number.isNaN(at)) return '';
  return new Date(at - new Date(at).getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
}

export async function answerQuestion(
  { id, title }: Question,
  answer: Record<string, unknown>,
  action: string | undefined,
): Promise<void> {
  await api(`/questions/${enc(id)}/answer`, { method: 'POST', body: named({ answer, action }) });
  toast(`Answered: ${title}`);
}
