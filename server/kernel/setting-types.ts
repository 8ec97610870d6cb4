// The types of settings: how each reads its text, and what it allows.
import { parseDatabaseUrl } from './database-url.ts';

export interface Setting<T> {
  default: T;
  doc: string;
  allowed: string;
  parse(text: string): T | undefined;
}

export function text(fallback: string, doc: string): Setting<string> {
  return { default: fallback, doc, allowed: 'any text', parse: (s) => s };
}

export function integer(fallback: number, min: number, max: number, doc: string): Setting<number> {
  const base = number(fallback, min, max, doc);
  return {
    ...base,
    allowed: `a whole number from ${min} to ${max}`,
    parse: (s) => (/^-?\d+$/.test(s) ? base.parse(s) : undefined),
  };
}

export function number(fallback: number, min: number, max: number, doc: string): Setting<number> {
  return {
    default: fallback,
    doc,
    allowed: `a number from ${min} to ${max}`,
    parse: (s) => {
      const n = /^-?\d+(\.\d+)?$/.test(s) ? Number(s) : Number.NaN;
      return n >= min && n <= max ? n : undefined;
    },
  };
}

export function oneOf<const T extends string>(values: readonly [T, ...T[]], doc: string): Setting<T> {
  return {
    default: values[0],
    doc,
    allowed: `one of ${values.join(', ')}`,
    parse: (s) => values.find((v) => v === s),
  };
}

export function flag(fallback: boolean, doc: string): Setting<boolean> {
  return {
    default: fallback,
    doc,
    allowed: 'true or false',
    parse: (s) => (s === 'true' ? true : s === 'false' ? false : undefined),
  };
}

/** Without a slash at the end. */
export function httpUrl(doc: string): Setting<string> {
  return {
    default: '',
    doc,
    allowed: 'an http:// or https:// URL without a query',
    parse: (s) => {
      const url = URL.canParse(s) ? new URL(s) : undefined;
      if (url === undefined || !/^https?:$/.test(url.protocol) || url.search !== '' || url.hash !== '')
        return undefined;
      return s.replace(/\/+$/, '');
    },
  };
}

export function postgresUrl(doc: string): Setting<string> {
  return {
    default: '',
    doc,
    allowed:
      'a postgres:// or postgresql:// URL, with one host or several (h1:5432,h2:5432), and target_session_attrs any, read-write or primary',
    parse: (s) => (parseDatabaseUrl(s) === undefined ? undefined : s),
  };
}

/** A key that neither a person nor a program that knows what people type could guess. */
export function secretKey(doc: string): Setting<string> {
  return {
    default: '',
    doc,
    allowed: 'at least 32 characters that cannot be guessed, e.g. from `openssl rand -hex 24`',
    parse: (s) => (isGuessable(s) ? undefined : s),
  };
}

const minLength = 32;
const minCharacters = 8;
const minBits = 90;
// Random text has about 100 bits even in its steps; a sequence with a few breaks has fewer than 40.
const minStepBits = 60;
// `1a2b3c` has equal steps from each character to the second after it.
const maxStride = 4;

/** Short, of few different characters, repeating itself, or a sequence of the alphabet or the keyboard. */
function isGuessable(key: string): boolean {
  if (key.length < minLength) return true;
  const characters = [...key];
  return (
    new Set(characters).size < minCharacters ||
    bitsOf(characters) < minBits ||
    isRepetition(key) ||
    isSequence(characters.map((character) => character.codePointAt(0) as number)) ||
    isSequence(characters.map(placeOnKeyboard))
  );
}

/** Random text of 32 characters hardly ever has the same three twice. */
function isRepetition(text: string): boolean {
  const count = text.length - 2;
  const parts = new Set(Array.from({ length: count }, (_, at) => text.slice(at, at + 3)));
  return parts.size < (count * 2) / 3;
}

function isSequence(places: readonly number[]): boolean {
  for (let stride = 1; stride <= maxStride; stride++) {
    const steps = places.slice(stride).map((place, at) => place - (places[at] as number));
    if (bitsOf(steps) < minStepBits) return true;
  }
  return false;
}

/** The information of a list whose values come as often as they do. */
function bitsOf(values: readonly unknown[]): number {
  const counts = new Map<unknown, number>();
  for (const value of values) counts.set(value, (counts.get(value) ?? 0) + 1);
  let bits = 0;
  for (const n of counts.values()) bits -= n * Math.log2(n / values.length);
  return bits;
}

const keyboard = "`1234567890-=qwertyuiop[]asdfghjkl;'zxcvbnm,./";

function placeOnKeyboard(character: string): number {
  return keyboard.indexOf(character.toLowerCase());
}
