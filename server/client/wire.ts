// From options in camel case to what the API reads: fields in snake case, times as text, lists in queries with commas.

/** Content that belongs to the user: its keys are sent as they are. */
const opaque = new Set(['payload', 'result', 'constraints', 'labels']);
const names = new Map<string, string>();

export function toBody(options: object): Record<string, unknown> {
  const body: Record<string, unknown> = {};
  for (const [key, value] of Object.entries(options)) {
    if (value !== undefined) body[snakeCase(key)] = opaque.has(key) ? value : toValue(value);
  }
  return body;
}

function toValue(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(toValue);
  if (typeof value !== 'object' || value === null || value instanceof Date) return value;
  return toBody(value);
}

/** `?status=ERROR,PAUSED&limit=50`, or an empty text. */
export function toQuery(options: object): string {
  const parts: string[] = [];
  for (const [key, value] of Object.entries(options)) {
    if (value === undefined) continue;
    const text = value instanceof Date ? value.toISOString() : String(value);
    parts.push(`${snakeCase(key)}=${encodeURIComponent(text)}`);
  }
  return parts.length === 0 ? '' : `?${parts.join('&')}`;
}

function snakeCase(name: string): string {
  let known = names.get(name);
  if (known === undefined) {
    known = name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
    names.set(name, known);
  }
  return known;
}

/** For requests that may be repeated. */
export function randomKey(): string {
  // Missing on pages that were loaded without TLS.
  if (typeof crypto.randomUUID === 'function') return crypto.randomUUID();
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('');
}
