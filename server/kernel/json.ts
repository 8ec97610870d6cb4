// JSON values: finds values that Postgres cannot store or that are unsafe to merge, makes canonical text, keeps large
// values as text, and parses in turns. The search uses an explicit stack, because a value nested 10,000 deep would
// overflow the call stack.
import { ownTurn, Pace } from './clock.ts';

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

// Values that stay text: a large document is serialized once, for every statement and answer that contains it.
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

// Parsing in turns: a large text is cut at the commas of its large objects and lists, and parsed piece by piece.

// Takes at most about 4 ms: a piece of many small objects with a name each is the slowest.
const pieceChars = 32_768;

/** An object or list that is too large for one piece. */
interface LargeContainer {
  isList: boolean;
  /** The start of the text that is not in `pieces` yet, and of the next element. */
  pieceStart: number;
  elementStart: number;
  pieces: Piece[];
  /** The end of the last piece, if it was a container. Only a comma or the end may follow. */
  closedAt?: number | undefined;
  start: number;
}

/** Elements or fields from `start` to `end`, or one of them: its name, if it has one, and a container after it. */
type Piece = { start: number; end: number; inner?: LargeContainer };

/** The value of JSON.parse, or its error, in several turns of the event loop. */
export async function parseJsonInTurns(text: string): Promise<unknown> {
  await ownTurn();
  const root = findPieces(text);
  if (root !== undefined) {
    try {
      return await buildContainer(text, root, new Pace());
    } catch (error) {
      if (!(error instanceof SyntaxError)) throw error;
    }
    await ownTurn();
  }
  // A short list, a long string, or invalid JSON, for which this throws the error.
  return JSON.parse(text);
}

const blank = /^[ \t\n\r]*$/;

/** Returns undefined if the text is not an object or list that can be cut. Parsing decides whether it is JSON. */
function findPieces(text: string): LargeContainer | undefined {
  const open: LargeContainer[] = [];
  let container: LargeContainer | undefined;
  for (let at = 0; at < text.length; at++) {
    switch (text.charCodeAt(at)) {
      case 0x22:
        at = endOfString(text, at);
        if (at === -1) return undefined;
        break;
      case 0x5b:
      case 0x7b:
        if (container !== undefined) open.push(container);
        else if (!blank.test(text.slice(0, at))) return undefined;
        container = { isList: text[at] === '[', start: at, pieceStart: at + 1, elementStart: at + 1, pieces: [] };
        break;
      case 0x2c:
        if (container === undefined || !endElement(text, container, at)) return undefined;
        break;
      case 0x5d:
      case 0x7d: {
        if (container === undefined || container.isList !== (text[at] === ']')) return undefined;
        const outer = open.pop();
        if (outer === undefined) {
          return endContainer(text, container, at) && blank.test(text.slice(at + 1)) ? container : undefined;
        }
        if (at - container.start >= pieceChars) {
          if (!endContainer(text, container, at) || !addContainer(text, outer, container, at)) return undefined;
        }
        container = outer;
      }
    }
  }
  return undefined;
}

function endOfString(text: string, start: number): number {
  for (let at = text.indexOf('"', start + 1); at !== -1; at = text.indexOf('"', at + 1)) {
    let escapes = at;
    while (text[escapes - 1] === '\\') escapes--;
    if ((at - escapes) % 2 === 0) return at;
  }
  return -1;
}

/** At a comma. */
function endElement(text: string, container: LargeContainer, at: number): boolean {
  const { pieceStart, closedAt } = container;
  container.elementStart = at + 1;
  if (closedAt !== undefined) {
    container.closedAt = undefined;
    container.pieceStart = at + 1;
    return blank.test(text.slice(closedAt, at));
  }
  if (at - pieceStart < pieceChars) return true;
  container.pieceStart = at + 1;
  return addPiece(text, container, { start: pieceStart, end: at });
}

function endContainer(text: string, container: LargeContainer, at: number): boolean {
  const { pieceStart, closedAt, pieces } = container;
  if (closedAt !== undefined) return blank.test(text.slice(closedAt, at));
  // Only an empty object or list may have nothing here; after a comma an element must follow.
  const isEmpty = pieces.length === 0 && blank.test(text.slice(pieceStart, at));
  return isEmpty || addPiece(text, container, { start: pieceStart, end: at });
}

function addContainer(text: string, outer: LargeContainer, inner: LargeContainer, at: number): boolean {
  const { pieceStart, elementStart } = outer;
  if (outer.closedAt !== undefined) return false;
  outer.closedAt = at + 1;
  const before = { start: pieceStart, end: elementStart - 1 };
  if (elementStart > pieceStart && !addPiece(text, outer, before)) return false;
  outer.pieces.push({ start: elementStart, end: inner.start, inner });
  return true;
}

function addPiece(text: string, container: LargeContainer, piece: Piece): boolean {
  container.pieces.push(piece);
  return !blank.test(text.slice(piece.start, piece.end));
}

async function buildContainer(text: string, { isList, pieces }: LargeContainer, pace: Pace): Promise<unknown> {
  const list: unknown[] = [];
  const object: Record<string, unknown> = {};
  for (const { start, end, inner } of pieces) {
    const own = text.slice(start, end);
    if (inner !== undefined) {
      const name = isList ? undefined : nameBefore(own);
      if (isList && !blank.test(own)) throw new SyntaxError();
      const value = await buildContainer(text, inner, pace);
      if (name === undefined) list.push(value);
      else setField(object, name, value);
      continue;
    }
    await pace.pause();
    if (isList) for (const value of JSON.parse(`[${own}]`) as unknown[]) list.push(value);
    else for (const [name, value] of Object.entries(JSON.parse(`{${own}}`) as object)) setField(object, name, value);
  }
  return isList ? list : object;
}

/** `"name" :` */
function nameBefore(text: string): string {
  const colon = text.lastIndexOf(':');
  const name: unknown =
    colon === -1 || !blank.test(text.slice(colon + 1)) ? undefined : JSON.parse(text.slice(0, colon));
  if (typeof name !== 'string') throw new SyntaxError();
  return name;
}

function setField(object: Record<string, unknown>, name: string, value: unknown): void {
  // An assignment would change the prototype.
  if (name !== '__proto__') object[name] = value;
  else Object.defineProperty(object, name, { value, enumerable: true, configurable: true, writable: true });
}
