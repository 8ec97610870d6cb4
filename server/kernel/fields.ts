// Input from clients: schemas of fields that several requests share, and a parser that names every invalid field.
import { z } from 'zod';
import { type Problem, problem } from './errors.ts';
import { formatPath } from './json/json-violations.ts';

// Control characters and line separators would break logs, headers and addresses.
const printable = /^[^\p{Cc}\p{Zl}\p{Zp}]+$/u;

/** A name chosen by a person: 1 to `maxLength` printable characters, no space at the ends. */
export function nameField(maxLength = 200) {
  return (
    z
      .string()
      .min(1)
      .max(maxLength)
      // Not .regex(): the API's description cannot express a pattern with the u flag.
      .refine((text) => printable.test(text), 'must contain printable characters only')
      .refine((text) => text === text.trim(), 'must not begin or end with a space')
  );
}

/** A name that is a path segment, in which `.` and `..` have a meaning. */
export function pathNameField() {
  return nameField().refine((text) => text !== '.' && text !== '..', 'must not be . or ..');
}

export function targetIdField() {
  return pathNameField();
}

export function isTargetId(text: string): boolean {
  return targetIdField().safeParse(text).success;
}

/**
 * An http or https URL. The limit applies to the encoded form, which is stored and sent: punycode and percent encoding
 * make it up to nine times as long as the typed text, and an index row holds 2,700 bytes.
 */
export function httpUrlField() {
  return z
    .url({ protocol: /^https?$/, error: 'must be an http or https address' })
    .max(maxUrlLength)
    .refine((text) => normalizeUrl(text).length <= maxUrlLength, `must have at most ${maxUrlLength} bytes once encoded`)
    .refine((text) => !hasCredentials(text), 'must not contain a user name or password');
}

const maxUrlLength = 2048;

/** Returns the encoded form, ASCII only, so that its length is its size in bytes. Returns other texts unchanged. */
export function normalizeUrl(text: string): string {
  return URL.canParse(text) ? new URL(text).href : text;
}

function hasCredentials(text: string): boolean {
  if (!URL.canParse(text)) return false;
  const { username, password } = new URL(text);
  return username !== '' || password !== '';
}

// The same object in every time field, which `isTimeText` compares.
const timeText = z.iso
  .datetime({ offset: true, error: 'must be an ISO 8601 time with a zone, e.g. 2026-01-31T08:00:00Z' })
  .max(40);

/**
 * The only parser for times from clients: ISO 8601 with a zone, converted to UTC. Keeps microseconds, which a Date
 * would drop. Refuses times that Postgres refuses: year 0, and offsets of 16 hours and more.
 */
export function timeField() {
  return timeText.transform((text, context) => {
    const utc = toUtc(text);
    if (utc !== undefined) return utc;
    const message = 'must lie between the years 1 and 9999, with an offset of less than 16 hours';
    context.addIssue({ code: 'custom', message });
    return z.NEVER;
  });
}

/** True if the text is a time in the format of the database, which `timeField` produces. */
export function isStorableTime(text: string): boolean {
  return timeText.safeParse(text).success && toUtc(text) === text;
}

/** True if this schema is the text inside a `timeField`, and not a raw time that Postgres might refuse. */
export function isTimeText(schema: unknown): boolean {
  return schema === timeText;
}

function toUtc(text: string): string | undefined {
  const [, whole = '', fraction = '', zone = ''] = /^(.{16}(?::\d\d)?)(?:\.(\d+))?(Z|[+-].*)$/.exec(text) ?? [];
  const ms = Date.parse(`${whole}${zone}`);
  if (Number.isNaN(ms) || /^[+-](?:1[6-9]|2)/.test(zone)) return undefined;
  const utc = new Date(ms).toISOString();
  if (!/^(?!0000)\d{4}-/.test(utc)) return undefined;
  return `${utc.slice(0, 19)}.${fraction.slice(0, 6).padEnd(6, '0')}Z`;
}

const uuidPattern = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i;

export function isUuid(text: string): boolean {
  return uuidPattern.test(text);
}

export interface FieldError {
  field: string;
  message: string;
}

/** `where` is the prefix of the field names, such as `query` or `settings`. `messages` replace those of zod. */
export function parseFields<S extends z.ZodType>(
  schema: S,
  value: unknown,
  where = '',
  messages?: (issue: z.core.$ZodRawIssue) => string | undefined,
): z.output<S> {
  const result = schema.safeParse(value, { error: messages ?? missingField });
  if (result.success) return result.data;
  throw invalidFields(fieldErrors(result.error.issues, where));
}

/** Zod's message for a missing field, "expected string, received undefined", does not say that it is missing. */
export function missingField(issue: z.core.$ZodRawIssue): string | undefined {
  const hasType = issue.code === 'invalid_type' || issue.code === 'invalid_value' || issue.code === 'invalid_union';
  return hasType && issue.input === undefined ? 'is required' : undefined;
}

export function invalidFields(errors: FieldError[]): Problem {
  const detail = errors.map((e) => `${e.field || 'the body'}: ${e.message}`).join('; ');
  return problem('INVALID_FIELD', detail, { field: errors[0]?.field ?? '', errors });
}

// A hostile body can cause thousands of issues; the first few are enough to correct it.
const maxErrors = 20;

function fieldErrors(issues: readonly z.core.$ZodIssue[], where: string): FieldError[] {
  const errors: FieldError[] = [];
  for (const issue of issues) {
    const path = where === '' ? issue.path : [where, ...issue.path];
    if (issue.code === 'unrecognized_keys') {
      for (const key of issue.keys) errors.push({ field: formatPath([...path, key]), message: 'is not a known field' });
    } else {
      errors.push({ field: formatPath(path), message: issue.message });
    }
    if (errors.length >= maxErrors) break;
  }
  return errors.slice(0, maxErrors);
}
