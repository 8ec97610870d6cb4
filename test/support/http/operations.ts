// The operations of a running daemon, from the document that its route table generates: a route that is added is tested
// without being named in a test.
import { scopes } from '../../../server/tenants/api-keys/key.ts';

export type JsonSchema = Record<string, unknown>;
export type Body = Record<string, unknown>;
type Scope = (typeof scopes)[number];

export interface Operation {
  id: string;
  method: string;
  /** With `{names}` of parameters. */
  path: string;
  access: 'public' | 'operator' | readonly Scope[];
  allowedWhileSuspended: boolean;
  parameters: { name: string; in: 'path' | 'query' }[];
  body: { schema: JsonSchema; example: Body } | undefined;
}

interface OperationEntry {
  operationId: string;
  'x-access'?: 'operator' | Scope | Scope[];
  'x-allowed-while-suspended'?: boolean;
  parameters?: Operation['parameters'];
  requestBody?: { content: { 'application/json': { schema: JsonSchema; example: Body } } };
}

export interface ApiDocument {
  paths: Record<string, Record<string, OperationEntry>>;
  components: { schemas: Record<string, JsonSchema> };
}

export async function readDocument(url: string): Promise<ApiDocument> {
  return (await (await fetch(`${url}/openapi.json`)).json()) as ApiDocument;
}

export function operationsOf({ paths }: ApiDocument): Operation[] {
  return Object.entries(paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, entry]) => ({
      id: entry.operationId,
      method: method.toUpperCase(),
      path,
      access: accessOf(entry),
      allowedWhileSuspended: entry['x-allowed-while-suspended'] === true,
      parameters: (entry.parameters ?? []).map(({ name, in: place }) => ({ name, in: place })),
      body: entry.requestBody?.content['application/json'],
    })),
  );
}

function accessOf(entry: OperationEntry): Operation['access'] {
  const access = entry['x-access'] ?? 'public';
  if (access === 'public' || access === 'operator') return access;
  const wanted = typeof access === 'string' ? [access] : access;
  for (const scope of wanted) if (!scopes.includes(scope)) throw new Error(`unknown access ${scope}`);
  return wanted;
}

/** Every field of a schema as a path, `['retry', 'codes', '0']`: lists have the element 0, records the key `k`. */
export function fieldsOf(document: ApiDocument, schema: JsonSchema): string[][] {
  const found = new Map<string, string[]>();
  const walk = (given: unknown, path: string[]): void => {
    const one = resolve(document, given);
    if (one === undefined || path.length > 6) return;
    if (path.length > 0) found.set(path.join('.'), path);
    for (const [name, inner] of Object.entries((one.properties ?? {}) as JsonSchema)) walk(inner, [...path, name]);
    if (one.items !== undefined) walk(one.items, [...path, '0']);
    if (typeof one.additionalProperties === 'object') walk(one.additionalProperties, [...path, 'k']);
    for (const kind of ['anyOf', 'oneOf', 'allOf']) for (const each of (one[kind] ?? []) as unknown[]) walk(each, path);
  };
  walk(schema, []);
  return [...found.values()];
}

function resolve(document: ApiDocument, schema: unknown): JsonSchema | undefined {
  if (typeof schema !== 'object' || schema === null) return undefined;
  const { $ref } = schema as { $ref?: string };
  if ($ref === undefined) return schema as JsonSchema;
  return resolve(document, document.components.schemas[$ref.split('/').at(-1) ?? '']);
}

/** A copy of the body with another value at the path. */
export function withField(body: Body, path: readonly string[], value: unknown): Body {
  const [name, ...rest] = path as [string, ...string[]];
  const holder: unknown[] | Body = name === '0' ? [] : { ...body };
  const inner = rest.length === 0 ? value : withField((body[name] ?? {}) as Body, rest, value);
  return Object.assign(holder, { [name]: inner }) as Body;
}

/** The path with values for its parameters. */
export function fillPath(path: string, idOf: (name: string) => string): string {
  return path.replace(/\{(\w+)\}/g, (_, name: string) => encodeURIComponent(idOf(name)));
}
