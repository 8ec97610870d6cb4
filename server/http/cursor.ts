// Opaque cursors: where a list goes on, bound to the list (and tenant) they were made for. A route gets a
// Cursor, never its text, and reads its parts only in a form that the database accepts.
import { createHash } from 'node:crypto';
import { z } from 'zod';
import { problem } from '../kernel/errors.ts';
import { isUuid } from '../kernel/fields.ts';
import { textViolation } from '../kernel/json.ts';

const forms = {
  uuid: isUuid,
  /** A non-negative bigint. */
  integer: (text: string) => /^\d{1,18}$/.test(text),
  text: (text: string) => textViolation(text) === undefined,
  /** As the database wrote it. */
  time: (text: string) => /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?Z$/.test(text) && !Number.isNaN(Date.parse(text)),
} as const satisfies Record<string, (text: string) => boolean>;
type Form = keyof typeof forms;

export class Cursor {
  #text: string;

  constructor(text: string) {
    this.#text = text;
  }

  /** `list` as in `encodeCursor`; `form` names what each part must be. Anything else is INVALID_CURSOR. */
  position<const F extends readonly Form[]>(list: string, form: F): { [K in keyof F]: string } {
    const [mark, ...parts] = parse(this.#text) ?? [];
    const fits = parts.length === form.length && form.every((name, n) => forms[name](parts[n] as string));
    if (mark !== markOf(list) || !fits) throw invalidCursor();
    return parts as unknown as { [K in keyof F]: string };
  }
}

/** `list` names the list and whose it is, e.g. `jobs:${tenant.id}`: a cursor of another one is refused. */
export function encodeCursor(list: string, position: readonly string[]): string {
  return Buffer.from(JSON.stringify([markOf(list), ...position])).toString('base64url');
}

export function invalidCursor() {
  return problem('INVALID_CURSOR', 'The cursor does not belong to this list.', { field: 'query.cursor' });
}

// The same object in every cursor field, by which `isCursorText` knows it.
const cursorText = z.string().max(1000);

export function cursorField() {
  return cursorText.transform((text) => new Cursor(text)).meta({ type: 'string', maxLength: 1000 });
}

export function isCursorText(schema: unknown): boolean {
  return schema === cursorText;
}

function parse(cursor: string): string[] | undefined {
  try {
    const value: unknown = JSON.parse(Buffer.from(cursor, 'base64url').toString());
    return Array.isArray(value) && value.every((part) => typeof part === 'string') ? value : undefined;
  } catch {
    return undefined;
  }
}

function markOf(list: string): string {
  return createHash('sha256').update(list).digest('base64url').slice(0, 8);
}
