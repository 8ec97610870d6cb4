// Questions to people: the types of the API, the fields of their forms, and sending an answer.
import { toast } from '../parts/shell/toasts.tsx';
import { named } from './actions.ts';
import { type ApiError, api, enc } from './api.ts';

type Property = { type?: string; title?: string; description?: string; enum?: unknown[]; default?: unknown } & Record<
  string,
  unknown
>;

export interface Question {
  id: string;
  job_id: string;
  /** The durable call that waits; empty if a budget has stopped the job. */
  step: string;
  target_id: string | null;
  title: string;
  context: unknown;
  schema: { properties?: Record<string, Property>; required?: string[] };
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

/** The control for a field. A value that no other control can express is entered as JSON. */
type Control = 'yesNo' | 'check' | 'choice' | 'number' | 'line' | 'lines' | 'json';

export interface QuestionField {
  name: string;
  label: string;
  hint: string | undefined;
  control: Control;
  required: boolean;
  property: Property;
}

/** Omits fields that every action sets. */
export function fieldsOf({ schema, actions }: Question): QuestionField[] {
  return Object.entries(schema.properties ?? {}).flatMap(([name, property]) => {
    const setBy = actions.filter((action) => action.answer !== undefined && Object.hasOwn(action.answer, name)).length;
    if (actions.length > 0 && setBy === actions.length) return [];
    const required = setBy === 0 && (schema.required ?? []).includes(name);
    const label = property.title ?? name.replaceAll(/[_-]+/g, ' ').replace(/^./, (letter) => letter.toUpperCase());
    return [{ name, label, hint: property.description, control: controlOf(property, required), required, property }];
  });
}

function controlOf(property: Property, required: boolean): Control {
  if (Array.isArray(property.enum) && property.enum.every((value) => typeof value === 'string')) return 'choice';
  if (property.type === 'boolean') return required && property.default === undefined ? 'yesNo' : 'check';
  if (property.type === 'number' || property.type === 'integer') return 'number';
  if (property.type !== 'string') return 'json';
  return typeof property.maxLength === 'number' && property.maxLength <= 200 ? 'line' : 'lines';
}

/** Fields as the form calls them: `answer.dueDate: is required` → `Due date: is required`. */
export function describeRefusal(
  { message, problem }: Pick<ApiError, 'message' | 'problem'>,
  fields: readonly Pick<QuestionField, 'name' | 'label'>[],
): string {
  const errors = problem.errors as { field: string; message: string }[] | undefined;
  if (errors === undefined) return message;
  const labels = new Map(fields.map(({ name, label }) => [`answer.${name}`, label]));
  return errors.map((error) => `${labels.get(error.field) ?? error.field}: ${error.message}`).join('; ');
}

/** A value that cannot be parsed is sent unchanged, and the API names the field. */
export function readAnswer(fields: readonly QuestionField[], form: FormData): Record<string, unknown> {
  const answer: Record<string, unknown> = {};
  for (const { name, control } of fields) {
    const text = String(form.get(`field.${name}`) ?? '');
    if (control === 'check') answer[name] = text === 'true';
    else if (text !== '') answer[name] = valueFrom(control, text);
  }
  return answer;
}

function valueFrom(control: Control, text: string): unknown {
  if (control === 'yesNo') return text === 'true';
  if (control === 'number') return Number(text);
  if (control !== 'json') return text;
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

export async function answerQuestion(
  { id, title }: Question,
  answer: Record<string, unknown>,
  action: string | undefined,
): Promise<void> {
  await api(`/questions/${enc(id)}/answer`, { method: 'POST', body: named({ answer, action }) });
  toast(`Answered: ${title}`);
}
