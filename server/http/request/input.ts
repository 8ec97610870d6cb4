// The input of a route. Params, query and body are checked first for values that no schema detects (NUL, lone
// surrogates, __proto__, depth), then against the schemas, field by field. The schemas themselves are checked when the
// route is defined.
import type { Request } from 'express';
import type { z } from 'zod';
import { problem } from '../../kernel/errors.ts';
import { invalidFields, isTimeText, parseFields } from '../../kernel/fields.ts';
import { findJsonViolation } from '../../kernel/json/json-violations.ts';
import { isCursorText } from './paging.ts';

/** The input part of a route's definition. */
export interface RouteInput {
  method: string;
  path: string;
  access: unknown;
  params?: z.ZodObject | undefined;
  query?: z.ZodObject | undefined;
  body?: z.ZodType | undefined;
  bodyOptional?: boolean | undefined;
}

export function validateInput(definition: RouteInput, request: Request) {
  return {
    params: definition.params ? parseSafe(definition.params, request.params, '') : undefined,
    query: parseQuery(definition, request),
    body: parseBody(definition, request),
  };
}

function parseQuery(definition: RouteInput, request: Request): unknown {
  const query = request.url.includes('?') ? { ...request.query } : {};
  if (definition.query) return parseSafe(definition.query, query, 'query');
  const unknown = Object.keys(query);
  // A route without query fields also refuses a misspelt or misplaced one.
  if (unknown.length > 0 && definition.access !== 'public') {
    throw invalidFields(
      unknown.slice(0, 20).map((name) => ({ field: `query.${name}`, message: 'is not a known field' })),
    );
  }
  return undefined;
}

function parseBody(definition: RouteInput, request: Request): unknown {
  if (!definition.body) return undefined;
  const body: unknown = request.body === undefined && definition.bodyOptional ? {} : request.body;
  if (body === undefined) throw problem('INVALID_JSON', 'The request needs a JSON body.');
  return parseSafe(definition.body, body, '');
}

function parseSafe(schema: z.ZodType, value: unknown, where: string): unknown {
  const violation = findJsonViolation(value);
  if (violation)
    throw invalidFields([{ ...violation, field: where ? `${where}.${violation.field}` : violation.field }]);
  return parseFields(schema, value, where);
}

/**
 * Throws if an input schema has a time that is not a `timeField` or a cursor that is not a `cursorField`: their values
 * would reach Postgres unchecked.
 */
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

/** The schemas that a schema consists of. */
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
