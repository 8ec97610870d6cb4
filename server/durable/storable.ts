// Checks whether JSON and jsonb can hold a handler's value, and makes the copy that is stored.

import type { JobError } from '../jobs/model/job.ts';
import { jobError } from '../jobs/model/job-errors.ts';
import { largeBytes, ownTurn } from '../kernel/clock.ts';
import { findJsonViolation, maxJsonDepth } from '../kernel/json/json-violations.ts';
import { parseJsonInTurns } from '../kernel/json/parse-in-turns.ts';

// Enough for any message that a person reads; a dumped response body is cut.
const maxTextLength = 4000;

/** Returns text that Postgres can hold. */
export function storableText(text: string, maxLength = maxTextLength): string {
  const cut = text.length > maxLength ? `${text.slice(0, maxLength)}…` : text;
  return cut.toWellFormed().replaceAll('\u0000', '\ufffd');
}

/** True if storing the value takes a noticeable time, by an estimate of its size that stops at the limit. */
export function isLarge(value: unknown): boolean {
  try {
    return remainingBytes(value, largeBytes) < 0;
  } catch {
    // A property that cannot be read: `toStorable` throws the error.
    return false;
  }
}

function remainingBytes(value: unknown, limit: number, depth = 0): number {
  if (typeof value === 'string') return limit - value.length;
  if (typeof value !== 'object' || value === null) return limit - 8;
  // Too deep to be stored: `toStorable` throws the error.
  if (depth > maxJsonDepth) return limit;
  let rest = limit;
  for (const key in value) {
    rest = remainingBytes((value as Record<string, unknown>)[key], rest - key.length - 8, depth + 1);
    if (rest < 0) return rest;
  }
  return rest - 8;
}

/** `text` is the value as JSON, unless it is short. */
export type Storable = { ok: true; value: unknown; text?: string } | { ok: false; error: JobError };

/** `what` names the value in the error: `The result`, `The checkpoint`. Undefined counts as null. */
export function toStorable(value: unknown, limitBytes: number, what: string): Storable {
  if (value === undefined || value === null || typeof value === 'boolean') return { ok: true, value: value ?? null };
  const encoded = encode(value, limitBytes, what);
  return typeof encoded === 'string' ? check(JSON.parse(encoded), encoded, what) : encoded;
}

/** The same for a large value, in several turns of the event loop. */
export async function toStorableInTurns(value: unknown, limitBytes: number, what: string): Promise<Storable> {
  await ownTurn();
  const encoded = encode(value, limitBytes, what);
  if (typeof encoded !== 'string') return encoded;
  const copy = await parseJsonInTurns(encoded);
  await ownTurn();
  return check(copy, encoded, what);
}

// A shorter text is serialized again when it is needed.
const keptChars = 1024;

function encode(value: unknown, limitBytes: number, what: string): string | Storable {
  let text: string | undefined;
  try {
    text = isPlain(value) ? JSON.stringify(value) : JSON.stringify(value, refuse);
  } catch (error) {
    return notJson(what, error instanceof NotJson ? error.message : plainReason(error));
  }
  if (text === undefined) return notJson(what, `is ${typeof value === 'function' ? 'a function' : 'no JSON value'}`);
  const bytes = Buffer.byteLength(text);
  if (bytes <= limitBytes) return text;
  const message = `${what} has ${bytes} bytes as JSON; at most ${limitBytes} are allowed.`;
  return { ok: false, error: jobError('RESULT_TOO_LARGE', message, { bytes, limit: limitBytes }) };
}

function check(copy: unknown, text: string, what: string): Storable {
  const reason = findJsonViolation(copy);
  if (reason) return notJson(what, `${reason.field === '' ? '' : `at ${reason.field} `}${reason.message}`);
  return text.length < keptChars ? { ok: true, value: copy } : { ok: true, value: copy, text };
}

class NotJson extends Error {}

function notJson(what: string, reason: string): Storable {
  return { ok: false, error: jobError('RESULT_NOT_JSON', `${what} cannot be stored as JSON: it ${reason}.`) };
}

// Deep enough for results of handlers. Deeper values and cycles take the slower path.
const maxPlainDepth = 50;

/** True if JSON.stringify keeps the whole value. A replacer takes five times as long, so most results avoid it. */
function isPlain(value: unknown, depth = 0): boolean {
  switch (typeof value) {
    case 'string':
    case 'boolean':
      return true;
    case 'number':
      return Number.isFinite(value);
    case 'object':
      break;
    default:
      return false;
  }
  if (value === null) return true;
  if (depth === maxPlainDepth || 'toJSON' in value) return false;
  if (Array.isArray(value)) {
    // By index, because a hole counts as undefined.
    for (let n = 0; n < value.length; n++) if (!isPlain(value[n], depth + 1)) return false;
    return true;
  }
  if (value instanceof Map || value instanceof Set) return false;
  for (const key of Object.keys(value)) {
    const inner = (value as Record<string, unknown>)[key];
    if (inner !== undefined && !isPlain(inner, depth + 1)) return false;
  }
  return true;
}

// Values that JSON.stringify would drop or change silently. An undefined property is left out, as usual.
function refuse(this: unknown, key: string, value: unknown): unknown {
  const at = key === '' ? '' : ` at ${JSON.stringify(key)}`;
  switch (typeof value) {
    case 'function':
    case 'symbol':
    case 'bigint':
      throw new NotJson(`holds a ${typeof value}${at}`);
    case 'number':
      if (!Number.isFinite(value)) throw new NotJson(`holds ${value}${at}`);
      break;
    case 'undefined':
      if (Array.isArray(this)) throw new NotJson(`holds undefined at [${key}]`);
      break;
    case 'object':
      if (value instanceof Map || value instanceof Set) throw new NotJson(`holds a ${value.constructor.name}${at}`);
  }
  return value;
}

function plainReason(error: unknown): string {
  if (error instanceof RangeError) return 'is nested too deeply';
  const text = error instanceof Error ? error.message : String(error);
  return /circular/i.test(text) ? 'refers to itself' : `says: ${text.slice(0, 200)}`;
}
