// Maps a value to the API with the schema that documents it: every key of the schema is copied from the field of the
// same name in camel case. The compiler requires the keys that the value does not have with the right type.
import type { z } from 'zod';

type Camel<S> = S extends `${infer Head}_${infer Tail}` ? `${Head}${Capitalize<Camel<Tail>>}` : S;

/** The keys of the schema that the value has with the right type. */
type Copied<Api, Value> = {
  [K in keyof Api]: Camel<K> extends keyof Value ? (Value[Camel<K>] extends Api[K] ? K : never) : never;
}[keyof Api];

/** Keys that cannot be copied are required; the others may be replaced. */
type Given<Api, Value> = Omit<Api, Copied<Api, Value>> & Partial<Api>;

export function toApi<S extends z.ZodObject, V extends object>(
  schema: S,
  value: V,
  ...rest: object extends Given<z.input<S>, V> ? [given?: Given<z.input<S>, V>] : [given: Given<z.input<S>, V>]
): z.input<S> {
  const given: Record<string, unknown> = rest[0] ?? {};
  const source = value as Record<string, unknown>;
  const body: Record<string, unknown> = {};
  for (const [key, field] of fieldsOf(schema)) body[key] = key in given ? given[key] : source[field];
  return body as z.input<S>;
}

const known = new WeakMap<z.ZodObject, (readonly [key: string, field: string])[]>();

function fieldsOf(schema: z.ZodObject) {
  let fields = known.get(schema);
  if (fields === undefined) {
    fields = Object.keys(schema.shape).map((key) => [key, camel(key)] as const);
    known.set(schema, fields);
  }
  return fields;
}

function camel(key: string): string {
  return key.replace(/_([a-z])/g, (_, letter: string) => letter.toUpperCase());
}
