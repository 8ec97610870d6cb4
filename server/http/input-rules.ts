// What the schemas of a route's input may not contain: a time that is not a `timeField` and a cursor that is
// not a `cursorField` would reach Postgres unchecked. Checked when the route is defined, so that no request finds it.
import type { z } from 'zod';
import { isTimeText } from '../kernel/fields.ts';
import { isCursorText } from './cursor.ts';

interface RouteInput {
  method: string;
  path: string;
  params?: z.ZodObject | undefined;
  query?: z.ZodObject | undefined;
  body?: z.ZodType | undefined;
}

export function checkInputRules(definition: RouteInput): void {
  const where = `${definition.method} ${definition.path}`;
  for (const part of ['params', 'query', 'body'] as const) {
    const schema = definition[part];
    if (schema) walk(schema, `${where}: ${part}`, new Set());
  }
  const cursor = definition.query?.shape.cursor;
  if (cursor && !textsOf(cursor).every(isCursorText)) throw new Error(`${where}: query.cursor must be a cursorField()`);
}

function walk(schema: z.core.$ZodType, where: string, seen: Set<unknown>): void {
  if (seen.has(schema)) return;
  seen.add(schema);
  if (isRawTime(schema)) throw new Error(`${where} contains a time that is not a timeField()`);
  for (const inner of innerOf(schema)) walk(inner, where, seen);
}

function isRawTime(schema: z.core.$ZodType): boolean {
  if (isTimeText(schema)) return false;
  const { def } = schema._zod as { def: { format?: string; checks?: { _zod: { def: { format?: string } } }[] } };
  return def.format === 'datetime' || (def.checks ?? []).some((check) => check._zod.def.format === 'datetime');
}

function textsOf(schema: z.core.$ZodType): z.core.$ZodType[] {
  const inner = innerOf(schema).filter((part) => part._zod.def.type !== 'transform');
  return inner.length === 0 ? [schema] : inner.flatMap(textsOf);
}

/** The schemas that a schema is made of. */
function innerOf(schema: z.core.$ZodType): z.core.$ZodType[] {
  const def = schema._zod.def as unknown as Record<string, unknown>;
  const parts = [
    def.element,
    def.innerType,
    def.keyType,
    def.valueType,
    def.in,
    def.out,
    def.left,
    def.right,
    def.catchall,
  ];
  const lists = [def.options, def.items, Object.values((def.shape as object | undefined) ?? {})];
  return [...parts, ...lists.flat()].filter(
    (part): part is z.core.$ZodType => typeof part === 'object' && part !== null && '_zod' in part,
  );
}
