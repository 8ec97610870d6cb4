// Checks params, query and body against a route's schemas. First what no schema can see (NUL, half
// characters, __proto__, depth), then the fields; every fault is named.
import type { Request } from 'express';
import { problem } from '../kernel/errors.ts';
import { findJsonViolation } from '../kernel/json.ts';
import { invalidFields, parseFields } from '../kernel/parse.ts';
import type { RouteDefinition } from './route.ts';

export function validateInput(definition: RouteDefinition, request: Request) {
  return {
    params: definition.params ? parseSafe(definition.params, request.params, '') : undefined,
    query: parseQuery(definition, request),
    body: parseBody(definition, request),
  };
}

function parseQuery(definition: RouteDefinition, request: Request): unknown {
  const query = { ...request.query };
  if (definition.query) return parseSafe(definition.query, query, 'query');
  const unknown = Object.keys(query);
  // A route without query fields still tells of a misspelt or misplaced one.
  if (unknown.length > 0 && definition.access !== 'public') {
    throw invalidFields(
      unknown.slice(0, 20).map((name) => ({ field: `query.${name}`, message: 'is not a known field' })),
    );
  }
  return undefined;
}

function parseBody(definition: RouteDefinition, request: Request): unknown {
  if (!definition.body) return undefined;
  const body: unknown = request.body === undefined && definition.bodyOptional ? {} : request.body;
  if (body === undefined) throw problem('INVALID_JSON', 'The request needs a JSON body.');
  return parseSafe(definition.body, body, '');
}

function parseSafe(schema: NonNullable<RouteDefinition['body']>, value: unknown, where: string): unknown {
  const fault = findJsonViolation(value);
  if (fault) throw invalidFields([{ ...fault, field: where ? `${where}.${fault.field}` : fault.field }]);
  return parseFields(schema, value, where);
}
