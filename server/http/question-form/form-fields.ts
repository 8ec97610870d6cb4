// The fields of a form, from the JSON Schema of an answer, and the answer from a browser's form data. A value that no
// field can express, such as a list of objects, is entered as JSON.
import type { AnswerSchema, QuestionAction } from '../../jobs/questions/question-request.ts';

export interface FormField {
  name: string;
  label: string;
  hint: string | undefined;
  kind: 'text' | 'longText' | 'number' | 'date' | 'email' | 'yesNo' | 'checkbox' | 'choice' | 'choices' | 'json';
  required: boolean;
  /** The options of a choice. */
  options: readonly string[];
  min: number | undefined;
  max: number | undefined;
  step: 'any' | '1';
  maxLength: number | undefined;
  initial: string | readonly string[];
}

/** The entered values, by name of the field. */
export type Entered = Record<string, string | readonly string[] | undefined>;

type Property = Record<string, unknown>;

/** Omits fields that every action sets. */
export function formFields(schema: AnswerSchema, actions: readonly QuestionAction[]): FormField[] {
  const properties = (schema.properties ?? {}) as Record<string, Property>;
  const required = new Set((schema.required ?? []) as string[]);
  const isSetBy = (name: string, { answer }: QuestionAction) => answer !== undefined && Object.hasOwn(answer, name);
  const isSet = (name: string) => actions.length > 0 && actions.every((action) => isSetBy(name, action));
  return Object.entries(properties)
    .filter(([name]) => !isSet(name))
    .map(([name, property]) => {
      // An action that sets the field needs no entry.
      const isNeeded = required.has(name) && !actions.some((action) => isSetBy(name, action));
      return fieldOf(name, property, isNeeded);
    });
}

function fieldOf(name: string, property: Property, required: boolean): FormField {
  const kind = kindOf(property, required);
  const options = optionsOf(kind === 'choices' ? (property.items as Property) : property);
  return {
    name,
    label: text(property.title) ?? humanize(name),
    hint: text(property.description),
    kind,
    required: required && kind !== 'checkbox' && kind !== 'choices',
    options,
    min: numberOf(property.minimum),
    max: numberOf(property.maximum),
    step: property.type === 'integer' ? '1' : 'any',
    maxLength: numberOf(property.maxLength),
    initial: initialOf(property.default, kind),
  };
}

// Longer texts get several lines.
const maxLineLength = 200;

function kindOf(property: Property, required: boolean): FormField['kind'] {
  if (optionsOf(property).length > 0) return 'choice';
  switch (property.type) {
    case 'boolean':
      return required && property.default === undefined ? 'yesNo' : 'checkbox';
    case 'number':
    case 'integer':
      return 'number';
    case 'array':
      return optionsOf((property.items ?? {}) as Property).length > 0 ? 'choices' : 'json';
    case 'string':
      if (property.format === 'date' || property.format === 'email') return property.format;
      return (numberOf(property.maxLength) ?? Number.POSITIVE_INFINITY) > maxLineLength ? 'longText' : 'text';
    default:
      return 'json';
  }
}

function optionsOf(property: Property): string[] {
  const values = Array.isArray(property.enum) ? property.enum : [];
  return values.every((value) => typeof value === 'string') ? values : [];
}

function initialOf(value: unknown, kind: FormField['kind']): string | readonly string[] {
  if (value === undefined) return '';
  if (kind === 'choices') return Array.isArray(value) ? value.map(String) : [];
  return kind === 'json' ? JSON.stringify(value, null, 2) : String(value);
}

function text(value: unknown): string | undefined {
  return typeof value === 'string' && value !== '' ? value : undefined;
}

function numberOf(value: unknown): number | undefined {
  return typeof value === 'number' && Math.abs(value) < Number.MAX_SAFE_INTEGER ? value : undefined;
}

/** `dueDate` and `due_date` become `Due date`. */
function humanize(name: string): string {
  const words = name
    .replaceAll(/([a-z])([A-Z])/g, '$1 $2')
    .replaceAll(/[_-]+/g, ' ')
    .trim()
    .toLowerCase();
  return words === '' ? name : words.charAt(0).toUpperCase() + words.slice(1);
}

/**
 * Returns the answer for the check against its schema. A value that cannot be parsed stays as entered, and the check
 * refuses it.
 */
export function answerOf(fields: readonly FormField[], entered: Entered): Record<string, unknown> {
  const answer: Record<string, unknown> = {};
  for (const field of fields) {
    const value = readValue(field, entered[field.name]);
    if (value !== undefined) answer[field.name] = value;
  }
  return answer;
}

function readValue({ kind }: FormField, entered: Entered[string]): unknown {
  if (kind === 'choices') return entered === undefined ? undefined : [entered].flat();
  const value = Array.isArray(entered) ? String(entered.at(-1)) : ((entered as string | undefined) ?? '');
  switch (kind) {
    case 'checkbox':
      return value === 'true';
    case 'yesNo':
      return value === '' ? undefined : value === 'true';
    case 'number':
      return value.trim() === '' ? undefined : Number.isNaN(Number(value)) ? value : Number(value);
    case 'json':
      return value.trim() === '' ? undefined : parsed(value);
    default:
      // Browsers send line breaks as two characters.
      return value === '' ? undefined : value.replaceAll('\r\n', '\n');
  }
}

function parsed(value: string): unknown {
  try {
    return JSON.parse(value);
  } catch {
    return value;
  }
}
