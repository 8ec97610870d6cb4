// Parses large JSON in several turns of the event loop: the text is cut at the commas of its large objects and lists,
// and parsed piece by piece.
import { ownTurn, Pace } from '../clock.ts';

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
