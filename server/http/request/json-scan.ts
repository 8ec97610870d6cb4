// Scans the bytes of a JSON body before it is parsed: counts its fields and values, and finds the elements of its
// lists. Parsing costs time and memory, so a body with too many values is refused here. It yields between slices, so
// that other requests are served meanwhile.

import { maxJsonDepth } from '../../kernel/json/json-violations.ts';

/** Beyond these limits a megabyte of JSON takes longer than 50 ms to parse, sort or check. */
export const jsonLimits = { fields: 20_000, values: 50_000, levels: maxJsonDepth } as const;
export type JsonExcess = keyof typeof jsonLimits;

export interface ScannedPart {
  start: number;
  /** Index after its last byte. */
  end: number;
  excess: JsonExcess | undefined;
}

export interface Scanned {
  /** The exceeded count outside of the parts, and the top-level field in which it was counted. */
  excess: JsonExcess | undefined;
  field: string;
  /** Objects and arrays in lists and objects at the top of the body, if the caller wants parts. */
  parts: ScannedPart[];
  /** The body ends within a part. */
  isCut: boolean;
}

const sliceBytes = 262_144;
const [quote, backslash, colon, comma] = [0x22, 0x5c, 0x3a, 0x2c];
const [openArray, closeArray, openObject, closeObject] = [0x5b, 0x5d, 0x7b, 0x7d];
// Inside `{"jobs": [`, an opening bracket begins a part.
const partDepth = 2;

/** Does not check the syntax; the parser does. */
export function* scanJson(bytes: Buffer, withParts: boolean): Generator<void, Scanned> {
  const parts: ScannedPart[] = [];
  let part: ScannedPart | undefined;
  let depth = 0;
  let count = { fields: 0, values: 0, levels: 0 };
  const outside = count;
  let inString = false;
  // The start of the last string at the top, and of the last one that was a name.
  let stringStart = 0;
  let field = { start: 0, end: 0 };
  for (let at = 0; at < bytes.length; ) {
    const stop = Math.min(at + sliceBytes, bytes.length);
    for (; at < stop; at++) {
      const byte = bytes[at];
      if (inString) {
        if (byte === backslash) at++;
        else if (byte === quote) inString = false;
        continue;
      }
      switch (byte) {
        case quote:
          inString = true;
          if (depth === 1) stringStart = at;
          break;
        case openArray:
        case openObject:
          if (withParts && depth === partDepth) {
            outside.values++;
            part = { start: at, end: at, excess: undefined };
            count = { fields: 0, values: 0, levels: 0 };
          }
          depth++;
          count.levels = part === undefined ? depth : depth - partDepth;
          count.values++;
          break;
        case closeArray:
        case closeObject:
          depth--;
          if (part !== undefined && depth === partDepth) {
            part.end = at + 1;
            parts.push(part);
            part = undefined;
            count = outside;
          }
          break;
        case colon:
          count.fields++;
          if (depth === 1) field = { start: stringStart, end: at };
          break;
        case comma:
          count.values++;
      }
      if (isExcess(count)) {
        const excess = excessOf(count);
        if (part === undefined) return { excess, field: nameAt(bytes, field), parts, isCut: false };
        part.excess ??= excess;
      }
    }
    yield;
  }
  return { excess: undefined, field: '', parts, isCut: part !== undefined };
}

type Count = Record<JsonExcess, number>;

function isExcess({ fields, values, levels }: Count): boolean {
  return fields > jsonLimits.fields || values > jsonLimits.values || levels > jsonLimits.levels;
}

function excessOf({ fields, levels }: Count): JsonExcess {
  if (levels > jsonLimits.levels) return 'levels';
  return fields > jsonLimits.fields ? 'fields' : 'values';
}

function nameAt(bytes: Buffer, { start, end }: { start: number; end: number }): string {
  try {
    const name: unknown = JSON.parse(bytes.toString('utf8', start, Math.min(end, start + 400)));
    return typeof name === 'string' ? name : '';
  } catch {
    return '';
  }
}
