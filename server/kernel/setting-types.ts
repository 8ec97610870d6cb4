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
