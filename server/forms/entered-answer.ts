// The answer from what a person entered in the fields of a form.
import type { FormField } from './answer-fields.ts';

/** The entered values, by name of the field. */
export type Entered = Record<string, string | readonly string[] | undefined>;

/** Nothing was entered. */
const blank = Symbol('blank');

/**
 * Returns the answer for the check against its schema. A value that cannot be parsed stays as entered, and the check
 * refuses it. An optional object of which nothing is entered is left out.
 */
export function answerOf(fields: readonly FormField[], entered: Entered): Record<string, unknown> {
  const answer: Record<string, unknown> = {};
  const read = fields.map((field) => ({ field, ...readValue(field, entered[field.name]) }));
  for (const { field, value } of read) {
    if (value !== blank) withObjects(answer, field)[lastOf(field)] = value;
  }
  for (const { field, value, whenBlank } of read) {
    const object = withRequiredObjects(answer, field);
    if (value === blank && object !== undefined && whenBlank !== undefined) object[lastOf(field)] = whenBlank;
  }
  return answer;
}

type JsonObject = Record<string, unknown>;

function lastOf({ path }: FormField): string {
  return path.at(-1) ?? '';
}

/** The object of the field, which is created with those around it. */
function withObjects(answer: JsonObject, { path }: FormField): JsonObject {
  let object = answer;
  for (const name of path.slice(0, -1)) {
    if (!Object.hasOwn(object, name)) object[name] = {};
    object = object[name] as JsonObject;
  }
  return object;
}

/** The object of the field if it exists or is required. Of a required object that may be null nothing was entered. */
function withRequiredObjects(answer: JsonObject, { path, objects }: FormField): JsonObject | undefined {
  let object = answer;
  for (const [n, { required, emptyIsNull }] of objects.entries()) {
    const name = path[n] ?? '';
    if (!Object.hasOwn(object, name) && !required) return undefined;
    if (!Object.hasOwn(object, name)) object[name] = emptyIsNull ? null : {};
    if (object[name] === null) return undefined;
    object = object[name] as JsonObject;
  }
  return object;
}

/** `whenBlank` is the value of a field that is left as it is, in an object that exists. */
function readValue(field: FormField, entered: Entered[string]): { value: unknown; whenBlank?: unknown } {
  const { kind, emptyIsNull, isList } = field;
  const all = entered === undefined ? [] : [entered].flat();
  if (kind === 'choices' && all.length > 0) return { value: all.map((option) => optionValue(field, option)) };
  const value = all.at(-1) ?? '';
  if (kind === 'checkbox') return value === 'true' ? { value: true } : { value: blank, whenBlank: false };
  const isEmpty = kind === 'text' || kind === 'longText' ? value === '' : value.trim() === '';
  if (isEmpty) return { value: blank, whenBlank: emptyIsNull ? null : isList ? [] : undefined };
  return { value: parsed(field, value) };
}

function parsed(field: FormField, value: string): unknown {
  switch (field.kind) {
    case 'yesNo':
      return value === 'true';
    case 'number':
      return Number.isNaN(Number(value)) ? value : Number(value);
    case 'choice':
      return optionValue(field, value);
    case 'dateTime':
      return timeOf(value.trim());
    case 'lines':
      return value.split(/\r?\n/).filter((line) => line.trim() !== '');
    case 'json':
      return jsonOf(value);
    default:
      // Browsers send line breaks as two characters.
      return value.replaceAll('\r\n', '\n');
  }
}

function optionValue({ options, values }: FormField, option: string): unknown {
  const place = options.indexOf(option);
  return place < 0 ? option : values[place];
}

/** A time without a zone is in UTC, as the form says. */
function timeOf(value: string): string {
  const [, minutes, seconds = ':00'] = /^(\d{4}-\d\d-\d\dT\d\d:\d\d)(:\d\d(?:\.\d+)?)?$/.exec(value) ?? [];
  return minutes === undefined ? value : `${minutes}${seconds}Z`;
}

function jsonOf(value: string): unknown {
  try {
    return JSON.parse(value);
  } catch {
    return value;
  }
}
