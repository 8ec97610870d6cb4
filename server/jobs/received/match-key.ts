// Keys by which an event from outside finds the jobs that wait for it, without reading those that wait for another one of
// the same name. A wait has one key: that of one value it wants. An event has the keys of all its values.
import { createHash } from 'node:crypto';

/** Of a wait that takes any data, or wants no single value. */
const anyKey = '';

/** The key of the wanted value that is likely to be the rarest: the longest. */
export function matchKeyOf(match: object | null): string {
  let rarest = anyKey;
  let length = 0;
  for (const leaf of leavesOf(match ?? {}, [])) {
    if (leaf.text.length <= length) continue;
    length = leaf.text.length;
    rarest = keyOf(leaf);
  }
  return rarest;
}

/** The keys of all waits that this data may satisfy. Whether it does, Postgres decides: `data @> match`. */
export function keysOf(data: unknown): string[] {
  const keys = new Set([anyKey]);
  for (const leaf of leavesOf(data, [])) keys.add(keyOf(leaf));
  return [...keys];
}

interface Leaf {
  path: string;
  text: string;
}

/** Elements of a list have no place: a list contains another if it has its elements, in any order. */
function* leavesOf(value: unknown, path: readonly (string | null)[]): Generator<Leaf> {
  if (Array.isArray(value)) {
    for (const element of value) yield* leavesOf(element, [...path, null]);
  } else if (typeof value === 'object' && value !== null) {
    for (const [name, inner] of Object.entries(value)) yield* leavesOf(inner, [...path, name]);
  } else yield { path: JSON.stringify(path), text: JSON.stringify(value) };
}

function keyOf({ path, text }: Leaf): string {
  return createHash('sha256').update(`${path}=${text}`).digest('base64url').slice(0, 16);
}
