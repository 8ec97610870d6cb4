// JSON values as text: a large document is serialized once, for every statement and answer that contains it. Also the
// canonical text of a value, for hashes.

// Placeholder of a text. Random, so that no value of a client contains it.
const mark = crypto.randomUUID();
/** The texts that the current `writeJson` has met, in order. */
let met: string[] | undefined;

/**
 * A JSON value as its text. Inside other values it behaves like the value, and `writeJson` writes it without parsing
 * it.
 */
export class JsonText {
  readonly text: string;

  constructor(text: string) {
    this.text = text;
  }

  toJSON(): unknown {
    if (met === undefined) return JSON.parse(this.text);
    met.push(this.text);
    return mark;
  }
}

/** JSON.stringify for a value that may contain texts. */
export function writeJson(value: object): string {
  const outer = met;
  const own: string[] = [];
  met = own;
  try {
    const text = JSON.stringify(value);
    if (own.length === 0) return text;
    const around = text.split(`"${mark}"`);
    return around.map((part, n) => (n === 0 ? part : `${own[n - 1]}${part}`)).join('');
  } finally {
    met = outer;
  }
}

/** The same text for two JSON values that differ only in the order of their fields. */
export function canonicalJson(value: unknown): string {
  return JSON.stringify(sorted(value));
}

/**
 * Returns a copy with sorted names, or the value itself if they are sorted. JSON.stringify of a copy is faster than a
 * hand-written serializer.
 */
function sorted(value: unknown): unknown {
  if (typeof value !== 'object' || value === null) return value;
  if (Array.isArray(value)) {
    const copy = value.map(sorted);
    return copy.every((inner, n) => inner === value[n]) ? value : copy;
  }
  const given = value as Record<string, unknown>;
  const names = Object.keys(given);
  let isSame = names.every((name, n) => n === 0 || (names[n - 1] as string) < name);
  if (!isSame) names.sort();
  const copy: Record<string, unknown> = {};
  for (const name of names) {
    copy[name] = sorted(given[name]);
    isSame &&= copy[name] === given[name];
  }
  return isSame ? value : copy;
}
