// Pages of lists: query fields, opaque cursors, and the response. A cursor is valid only for the list and tenant it was
// created for. A route gets a Cursor, never its text, and reads its parts only in a form that the database accepts.
import { createHash } from 'node:crypto';
import { z } from 'zod';
import { problem } from '../../kernel/errors.ts';
import { isStorableTime, isUuid } from '../../kernel/fields.ts';
import { textViolation } from '../../kernel/json/json-violations.ts';

const forms = {
  uuid: isUuid,
  /** A non-negative bigint. */
  integer: (text: string) => /^\d{1,18}$/.test(text),
  text: (text: string) => textViolation(text) === undefined,
  time: isStorableTime,
} as const satisfies Record<string, (text: string) => boolean>;
type Form = keyof typeof forms;
type Position<F extends readonly Form[]> = { [K in keyof F]: string };

export interface PageQuery {
  limit: number;
  cursor?: Cursor | undefined;
}

export interface Page<R> {
  rows: R[];
  /** The position of the next page; undefined for the last page. */
  next: readonly string[] | undefined;
}

export interface List<F extends readonly Form[]> {
  /** The list and its owner, such as `jobs:${tenant.id}`. A cursor of another list is refused. */
  name: string;
  /** The form of each part of a position. */
  position: F;
}

/** Reads the page of the query. `read` gets the position of its cursor, which is empty for the first page. */
export async function paged<const F extends readonly Form[], R>(
  list: List<F>,
  { cursor, limit }: PageQuery,
  read: (position: Partial<Position<F>>, limit: number) => Promise<Page<R>>,
): Promise<{ rows: R[]; next_cursor: string | null }> {
  const position = cursor === undefined ? ([] as Partial<Position<F>>) : cursor.position(list.name, list.position);
  const { rows, next } = await read(position, limit);
  return { rows, next_cursor: next === undefined ? null : encodeCursor(list.name, next) };
}

/** Returns a page from rows that were read with `limit` plus one, which shows whether there is a next page. */
export function pageOf<R>(rows: R[], limit: number, positionOf: (last: R) => readonly string[]): Page<R> {
  const shown = rows.slice(0, limit);
  const last = rows.length > limit ? shown.at(-1) : undefined;
  return { rows: shown, next: last === undefined ? undefined : positionOf(last) };
}

/** The response of a list: `{ jobs: […], next_cursor }`. */
export function pageSchema<N extends string, S extends z.ZodType>(name: N, item: S) {
  const shape = { [name]: z.array(item), next_cursor: z.string().nullable() };
  return z.strictObject(shape as { [K in N]: z.ZodArray<S> } & { next_cursor: z.ZodNullable<z.ZodString> });
}

/** Spread into a list's query schema: `z.strictObject({ ...pageQuery(), status: … })`. */
export function pageQuery(options: { defaultLimit?: number; maxLimit?: number } = {}) {
  const { defaultLimit = 50, maxLimit = 200 } = options;
  return {
    limit: integerQuery(1, maxLimit)
      .optional()
      .transform((limit) => limit ?? defaultLimit)
      .meta({ type: 'integer', minimum: 1, maximum: maxLimit, default: defaultLimit }),
    cursor: cursorField().optional().describe('`next_cursor` of the previous page.'),
  };
}

/** Query fields arrive as text. */
export function integerQuery(min: number, max: number) {
  return z
    .string()
    .regex(/^-?\d{1,15}$/, 'must be a whole number')
    .transform(Number)
    .pipe(z.int().min(min).max(max))
    .meta({ type: 'integer', minimum: min, maximum: max });
}

export function booleanQuery() {
  return z
    .enum(['true', 'false'])
    .transform((text) => text === 'true')
    .meta({ type: 'boolean' });
}

/** @internal Exported for its test. */
export class Cursor {
  #text: string;

  constructor(text: string) {
    this.#text = text;
  }

  /** `list` as in `encodeCursor`. `form` has the form of each part. Anything else is INVALID_CURSOR. */
  position<const F extends readonly Form[]>(list: string, form: F): Position<F> {
    const [mark, ...parts] = parse(this.#text) ?? [];
    const fits = parts.length === form.length && form.every((name, n) => forms[name](parts[n] as string));
    if (mark !== markOf(list) || !fits) throw invalidCursor();
    return parts as unknown as Position<F>;
  }
}

/** @internal Exported for its test. */
export function encodeCursor(list: string, position: readonly string[]): string {
  return Buffer.from(JSON.stringify([markOf(list), ...position])).toString('base64url');
}

export function invalidCursor() {
  return problem('INVALID_CURSOR', 'The cursor does not belong to this list.', { field: 'query.cursor' });
}

// The same object in every cursor field, by which `isCursorText` recognises it.
const cursorText = z.string().max(1000);

function cursorField() {
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
