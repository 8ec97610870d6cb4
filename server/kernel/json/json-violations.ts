// Finds JSON values that Postgres cannot store or that are unsafe to merge. The search uses an explicit stack, because
// a value nested 10,000 deep would overflow the call stack.

export interface JsonViolation {
  /** Path of the offending value: `payload.items[3].name`. */
  field: string;
  message: string;
}

// Deeper than any real document, shallow enough for every recursive JSON reader downstream.
export const maxJsonDepth = 100;

interface Node {
  value: unknown;
  parent: Node | undefined;
  step: string | number;
  depth: number;
}

/** Returns the first violation; undefined if there is none. */
export function findJsonViolation(root: unknown): JsonViolation | undefined {
  const top: Node = { value: root, parent: undefined, step: '', depth: 0 };
  const violation = leafViolation(root);
  if (violation) return { field: '', message: violation };
  const stack: Node[] = [top];
  for (let node = stack.pop(); node !== undefined; node = stack.pop()) {
    const { value, depth } = node;
    if (typeof value !== 'object' || value === null) continue;
    if (depth >= maxJsonDepth) return { field: pathOf(node), message: `is nested deeper than ${maxJsonDepth} levels` };
    const isArray = Array.isArray(value);
    for (const key of isArray ? value.keys() : Object.keys(value)) {
      const inner = (value as Record<PropertyKey, unknown>)[key];
      const message = (isArray ? undefined : nameViolation(key as string)) ?? leafViolation(inner);
      const isLeaf = typeof inner !== 'object' || inner === null;
      // Most values are leaves, which need no entry on the stack.
      if (isLeaf && message === undefined) continue;
      const child: Node = { value: inner, parent: node, step: key, depth: depth + 1 };
      if (message) return { field: pathOf(child), message };
      stack.push(child);
    }
  }
  return undefined;
}

function nameViolation(name: string): string | undefined {
  return name === '__proto__' ? 'is not an allowed name' : textViolation(name);
}

function leafViolation(value: unknown): string | undefined {
  if (typeof value === 'string') return textViolation(value);
  // JSON.parse reads 1e400 as Infinity, which would be stored as null.
  return typeof value === 'number' && !Number.isFinite(value) ? 'is too large a number' : undefined;
}

/** Postgres stores neither NUL (text, jsonb) nor half a surrogate pair (UTF-8). */
export function textViolation(text: string): string | undefined {
  if (text.includes('\u0000')) return 'contains the character \\u0000';
  if (!text.isWellFormed()) return 'contains a lone surrogate (half a character)';
  return undefined;
}

// At most 100 steps long; names are shown in a form that any log or terminal can print.
function pathOf(node: Node): string {
  const steps: (string | number)[] = [];
  for (let at: Node | undefined = node; at?.parent; at = at.parent) steps.unshift(at.step);
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
