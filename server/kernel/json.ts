// What a JSON value may not contain before it is stored or merged. Walks with a stack of its own,
// so that a 10,000-deep value is refused instead of overflowing the call stack.

export interface JsonViolation {
  /** Path of the offending value: `payload.items[3].name`. */
  field: string;
  message: string;
}

// Deeper than any real document, shallow enough for every recursive JSON reader downstream.
export const maxJsonDepth = 100;

interface Place {
  value: unknown;
  parent: Place | undefined;
  step: string | number;
  depth: number;
}

/** The first reason why Postgres or a merge would choke on this value; undefined if there is none. */
export function findJsonViolation(root: unknown): JsonViolation | undefined {
  const top: Place = { value: root, parent: undefined, step: '', depth: 0 };
  const fault = leafFault(root);
  if (fault) return { field: '', message: fault };
  const open: Place[] = [top];
  for (let place = open.pop(); place !== undefined; place = open.pop()) {
    const { value, depth } = place;
    if (typeof value !== 'object' || value === null) continue;
    if (depth >= maxJsonDepth) return { field: pathOf(place), message: `is nested deeper than ${maxJsonDepth} levels` };
    const isArray = Array.isArray(value);
    for (const key of isArray ? value.keys() : Object.keys(value)) {
      const inner = (value as Record<PropertyKey, unknown>)[key];
      const message = (isArray ? undefined : nameFault(key as string)) ?? leafFault(inner);
      const isLeaf = typeof inner !== 'object' || inner === null;
      // Leaves are most of a document and need no place on the stack.
      if (isLeaf && message === undefined) continue;
      const child: Place = { value: inner, parent: place, step: key, depth: depth + 1 };
      if (message) return { field: pathOf(child), message };
      open.push(child);
    }
  }
  return undefined;
}

function nameFault(name: string): string | undefined {
  return name === '__proto__' ? 'is not an allowed name' : textFault(name);
}

function leafFault(value: unknown): string | undefined {
  if (typeof value === 'string') return textFault(value);
  // JSON.parse reads 1e400 as Infinity, which would be stored as null.
  return typeof value === 'number' && !Number.isFinite(value) ? 'is too large a number' : undefined;
}

/** Postgres stores neither NUL (text, jsonb) nor half a surrogate pair (UTF-8). */
export function textFault(text: string): string | undefined {
  if (text.includes('\u0000')) return 'contains the character \\u0000';
  if (!text.isWellFormed()) return 'contains a lone surrogate (half a character)';
  return undefined;
}

// At most 100 steps long; names are shown in a form that any log or terminal can print.
function pathOf(place: Place): string {
  const steps: (string | number)[] = [];
  for (let at: Place | undefined = place; at?.parent; at = at.parent) steps.unshift(at.step);
  return formatPath(steps);
}

export function formatPath(steps: readonly PropertyKey[]): string {
  let path = '';
  for (const step of steps) {
    if (typeof step === 'number') path += `[${step}]`;
    else path += (path ? '.' : '') + printable(String(step));
  }
  return path.length > 300 ? `${path.slice(0, 300)}…` : path;
}

function printable(name: string): string {
  return name
    .toWellFormed()
    .replace(/[\u0000-\u001f\u007f]/g, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, '0')}`);
}
