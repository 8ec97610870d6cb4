// The data of a first start: the tenant "demo" with a key that is the same at every start, and a sample job that the
// daemon accepts.
import { chmod, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { z } from 'zod';
import type { Database } from '../database/database.ts';
import { createLogger } from '../kernel/logger.ts';
import { scopes } from '../tenants/api-keys/key.ts';
import { createApiKey } from '../tenants/api-keys/key-store.ts';
import { KeyVerifier } from '../tenants/api-keys/verifier.ts';
import { createTenant } from '../tenants/create-tenant.ts';
import { findTenant } from '../tenants/tenant-store.ts';
import type { HandlerRegistry } from '../worker/handlers/handler-registry.ts';

const slug = 'demo';

/** Returns the key's text. Kept beside the embedded data, readable by its owner only. */
export async function prepareDemo(db: Database, dataDir: string): Promise<string> {
  const file = join(dataDir, 'demo-key');
  const existing = await findTenant(db, slug);
  if (existing?.status === 'ACTIVE' || existing?.status === 'SUSPENDED') {
    const kept = await readFile(file, 'utf8').catch(() => '');
    const key =
      kept === '' ? undefined : await new KeyVerifier(db, { adminApiKey: '' }, createLogger('silent')).verify(kept);
    if (key?.tenantId === existing.id) return kept;
    const fresh = await createApiKey(db, { tenantId: existing.id, name: 'demo', scopes: [...scopes] });
    return keep(file, fresh.text);
  }
  const { key } = await createTenant(db, { slug });
  return keep(file, key.text);
}

async function keep(file: string, text: string): Promise<string> {
  await writeFile(file, text, { mode: 0o600 })
    .then(() => chmod(file, 0o600))
    .catch(() => {});
  return text;
}

export interface SampleJob {
  type: string;
  payload: unknown;
  /** The fields that the reader must fill in first, if no valid payload could be made. */
  missing?: string;
}

type Schema = { [key: string]: unknown };

/** Returns the first type for which a payload can be made; undefined if there are no types. */
export function sampleJob(handlers: HandlerRegistry): SampleJob | undefined {
  if (handlers.has('demo.echo')) return { type: 'demo.echo', payload: { hello: 'world' } };
  const types = handlers.types();
  for (const type of types) {
    for (const payload of [{}, samplePayload(handlers, type)]) {
      if (handlers.checkPayload(type, payload).ok) return { type, payload };
    }
  }
  const [type] = types;
  if (type === undefined) return undefined;
  const payload = samplePayload(handlers, type) ?? {};
  const checked = handlers.checkPayload(type, payload);
  return { type, payload, missing: checked.ok ? '' : `${checked.field}: ${checked.message}` };
}

function samplePayload(handlers: HandlerRegistry, type: string): unknown {
  const schema = handlers.get(type)?.payload;
  if (schema === undefined) return {};
  try {
    return sampleOf(z.toJSONSchema(schema, { io: 'input', unrepresentable: 'any' }) as Schema, 0);
  } catch {
    // A schema that JSON Schema cannot express.
    return undefined;
  }
}

const formats: Record<string, string> = {
  'date-time': '2030-01-31T08:00:00Z',
  date: '2030-01-31',
  time: '08:00:00',
  email: 'ann@example.com',
  uuid: '01890a5d-ac96-774b-bcce-b302099a8057',
  uri: 'https://example.com/',
  ipv4: '192.0.2.1',
};
const maxDepth = 10;

/** Returns the smallest value that the schema accepts. */
function sampleOf(schema: Schema, depth: number): unknown {
  if (depth > maxDepth) return null;
  for (const key of ['default', 'const'] as const) if (schema[key] !== undefined) return schema[key];
  for (const key of ['examples', 'enum'] as const) {
    const values = schema[key];
    if (Array.isArray(values) && values.length > 0) return values[0];
  }
  for (const key of ['anyOf', 'oneOf', 'allOf'] as const) {
    const choices = schema[key];
    if (Array.isArray(choices) && choices.length > 0) return sampleOf(choices[0] as Schema, depth + 1);
  }
  switch (Array.isArray(schema.type) ? schema.type[0] : schema.type) {
    case 'object':
      return objectOf(schema, depth);
    case 'array':
      return Array.from({ length: numberIn(schema.minItems, 0) }, () =>
        sampleOf((schema.items ?? {}) as Schema, depth + 1),
      );
    case 'string':
      return textOf(schema);
    case 'integer':
    case 'number':
      return numberOf(schema);
    case 'boolean':
      return true;
    case 'null':
      return null;
    default:
      // A value that JSON Schema cannot express is usually a date.
      return formats['date-time'];
  }
}

function objectOf(schema: Schema, depth: number): object {
  const properties = (schema.properties ?? {}) as Record<string, Schema>;
  const required = Array.isArray(schema.required) ? (schema.required as string[]) : [];
  return Object.fromEntries(required.map((name) => [name, sampleOf(properties[name] ?? {}, depth + 1)]));
}

function textOf(schema: Schema): string {
  const text = formats[String(schema.format)] ?? 'example';
  return text.padEnd(numberIn(schema.minLength, 0), 'x').slice(0, numberIn(schema.maxLength, text.length + 1000));
}

function numberOf(schema: Schema): number {
  const step = numberIn(schema.multipleOf, 1);
  const min = Math.max(numberIn(schema.minimum, -Infinity), numberIn(schema.exclusiveMinimum, -Infinity));
  const max = Math.min(numberIn(schema.maximum, Infinity), numberIn(schema.exclusiveMaximum, Infinity));
  const first = Math.ceil(min / step) * step;
  const fits = (n: number) => (n > min || n === schema.minimum) && (n < max || n === schema.maximum);
  return [step, first, first + step, (min + max) / 2].find(fits) ?? 1;
}

function numberIn(value: unknown, otherwise: number): number {
  return typeof value === 'number' ? value : otherwise;
}
