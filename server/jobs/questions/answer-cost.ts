// What it costs to check an answer, before it is checked. Lists and alternatives multiply: a few kilobytes of schema and a few
// thousand values could take minutes, in which the daemon does nothing else.

type Schema = Readonly<Record<string, unknown>>;

const isObject = (value: unknown): value is Schema =>
  typeof value === 'object' && value !== null && !Array.isArray(value);
const listOf = (value: unknown): readonly unknown[] => (Array.isArray(value) ? value : []);

/** A schema, and the value that is compared with it; undefined: there is none. */
type Comparison = readonly [schema: unknown, value: unknown];

/** How many schemas a value is compared with. Counts up to `max` + 1. */
export function countComparisons(schema: unknown, value: unknown, max: number): number {
  const left: Comparison[] = [[schema, value]];
  const options = new Map<Schema, ReadonlySet<unknown>>();
  let count = 0;
  for (let next = left.pop(); next !== undefined; next = left.pop()) {
    const [inner, compared] = next;
    count += 1;
    if (isObject(inner)) {
      count += literals(inner);
      // A value that is none of them gets an error that names all of them.
      if (Array.isArray(inner.enum)) {
        const known = options.get(inner) ?? new Set(inner.enum);
        options.set(inner, known);
        if (!known.has(compared)) count += known.size;
      }
      for (const comparison of comparisonsIn(inner, compared)) {
        left.push(comparison);
        if (count + left.length > max) return max + 1;
      }
    }
    if (count > max) return max + 1;
  }
  return count;
}

/** A list of values that are not all text is compared one by one. */
function literals({ enum: values, type }: Schema): number {
  const given = listOf(values);
  return (given.every((one) => typeof one === 'string') ? 0 : given.length) + listOf(type).length;
}

function* comparisonsIn(schema: Schema, value: unknown): Generator<Comparison> {
  for (const word of ['anyOf', 'oneOf', 'allOf']) for (const one of listOf(schema[word])) yield [one, value];
  if (Array.isArray(value)) yield* itemComparisons(schema, value);
  else yield* fieldComparisons(schema, isObject(value) ? value : {});
}

function* itemComparisons({ items, prefixItems }: Schema, value: readonly unknown[]): Generator<Comparison> {
  const first = listOf(prefixItems ?? items);
  const rest = prefixItems === undefined && Array.isArray(items) ? undefined : items;
  for (const [n, item] of value.entries()) {
    if (n < first.length) yield [first[n], item];
    else if (isObject(rest)) yield [rest, item];
  }
}

function* fieldComparisons(schema: Schema, value: Schema): Generator<Comparison> {
  const properties = isObject(schema.properties) ? schema.properties : {};
  for (const [name, inner] of Object.entries(properties)) {
    yield [inner, Object.hasOwn(value, name) ? value[name] : undefined];
  }
  const { additionalProperties: others, propertyNames: names } = schema;
  for (const [name, inner] of Object.entries(value)) {
    if (isObject(others) && !Object.hasOwn(properties, name)) yield [others, inner];
    if (isObject(names)) yield [names, name];
  }
}

/** How many schemas a schema is made of, and values that are compared one by one. Counts up to `max` + 1. */
export function countSchemas(schema: unknown, max: number): number {
  const left: unknown[] = [schema];
  let count = 0;
  for (let next = left.pop(); next !== undefined && count <= max; next = left.pop()) {
    if (Array.isArray(next)) left.push(...next);
    if (!isObject(next)) continue;
    count += 1 + literals(next);
    left.push(...Object.values(next).filter((inner) => typeof inner === 'object' && inner !== null));
  }
  return Math.min(count, max + 1);
}
