// The OpenAPI document as the explorer reads it, and default values for its forms.
export interface Schema {
  $ref?: string;
  type?: string | string[];
  description?: string;
  properties?: Record<string, Schema>;
  required?: string[];
  items?: Schema;
  enum?: unknown[];
  const?: unknown;
  default?: unknown;
  format?: string;
  anyOf?: Schema[];
  oneOf?: Schema[];
  allOf?: Schema[];
  additionalProperties?: Schema | boolean;
}

export interface Parameter {
  name: string;
  in: 'path' | 'query' | 'header';
  required?: boolean;
  description?: string;
  schema?: Schema;
  example?: unknown;
}

interface Content {
  content?: Record<string, { schema?: Schema; example?: unknown }>;
  description?: string;
}

interface Operation {
  operationId: string;
  summary: string;
  description?: string;
  tags: string[];
  parameters?: Parameter[];
  requestBody?: Content & { required?: boolean };
  responses: Record<string, Content>;
  'x-access'?: string | string[];
}

export interface ApiDocument {
  info: { title: string; version: string };
  tags: { name: string; description: string }[];
  paths: Record<string, Record<string, Operation>>;
  components?: { schemas?: Record<string, Schema> };
}

export interface Entry {
  method: string;
  path: string;
  operation: Operation;
}

export function entriesOf(document: ApiDocument): Entry[] {
  return Object.entries(document.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, operation]) => ({ method: method.toUpperCase(), path, operation })),
  );
}

/** The schema that a reference names, with its name. */
export function resolve(document: ApiDocument, schema: Schema | undefined): { schema: Schema; name?: string } {
  if (schema?.$ref === undefined) return { schema: schema ?? {} };
  const name = schema.$ref.split('/').at(-1) ?? '';
  return { schema: document.components?.schemas?.[name] ?? {}, name };
}

/** `string`, `integer or null`, `Job[]`, `one of A, B`. */
export function typeText(document: ApiDocument, given: Schema | undefined): string {
  const { schema, name } = resolve(document, given);
  if (name !== undefined) return name;
  if (schema.enum) return `one of ${schema.enum.join(', ')}`;
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  const choices = schema.anyOf ?? schema.oneOf;
  if (choices) return [...new Set(choices.map((each) => typeText(document, each)))].join(' or ');
  if (schema.type === 'array') return `${typeText(document, schema.items)}[]`;
  const type = Array.isArray(schema.type) ? schema.type.join(' or ') : (schema.type ?? 'any');
  return schema.format === undefined ? type : `${type} (${schema.format})`;
}

const maxDepth = 4;

/** Returns an example: the required fields, with plain values. */
export function sampleOf(document: ApiDocument, given: Schema | undefined, depth = 0): unknown {
  const { schema } = resolve(document, given);
  if (schema.default !== undefined) return schema.default;
  if (schema.const !== undefined) return schema.const;
  if (schema.enum) return schema.enum[0];
  const [first] = schema.anyOf ?? schema.oneOf ?? schema.allOf ?? [];
  if (first) return sampleOf(document, first, depth + 1);
  const type = Array.isArray(schema.type) ? schema.type[0] : schema.type;
  if (type === 'object' || schema.properties) {
    if (depth > maxDepth) return {};
    const fields = (schema.required ?? []).map((name) => [
      name,
      sampleOf(document, schema.properties?.[name], depth + 1),
    ]);
    return Object.fromEntries(fields);
  }
  return type === undefined ? {} : samples[type];
}

const samples: Record<string, unknown> = {
  array: [],
  string: '',
  integer: 1,
  number: 1,
  boolean: false,
  null: null,
};

export function jsonContent(content: Content | undefined): { schema?: Schema; example?: unknown } | undefined {
  return content?.content?.['application/json'];
}
