// Formats of values between Postgres and the code. timestamptz is read as ISO text with microseconds, because a Date
// would drop them and break cursors. int8 stays text, because identity values can exceed 2^53. Lists of uuids are sent
// in binary. Large JSON is parsed in separate turns of the event loop.
import pg from 'pg';
import { largeBytes, ownTurn } from '../../kernel/clock.ts';
import { parseJsonInTurns } from '../../kernel/json/parse-in-turns.ts';

const timestamptzOid = 1184;
const timestamptzListOid = 1185;
const jsonOids = [114, 3802];
// created_at, run_at, started_at, and one more.
const cacheSize = 4;

/**
 * One per pool or client. Caches a few texts, because the rows of one result usually share their times. `parseJson`
 * replaces JSON.parse.
 */
export function createTypeParsers(parseJson?: (text: string) => unknown): pg.CustomTypesConfig {
  const recent: { text: string; iso: string }[] = [];
  let oldest = 0;
  const toIsoOnce = (text: string): string => {
    for (const known of recent) if (known.text === text) return known.iso;
    const iso = toIso(text);
    recent[oldest] = { text, iso };
    oldest = (oldest + 1) % cacheSize;
    return iso;
  };
  // Its elements have a space and are quoted; none has a comma or is null.
  const toIsoList = (text: string): string[] =>
    text === '{}' ? [] : text.slice(1, -1).replaceAll('"', '').split(',').map(toIso);
  return {
    getTypeParser(oid: number, format?: 'text' | 'binary') {
      if (oid === timestamptzOid && format !== 'binary') return toIsoOnce as never;
      if (oid === timestamptzListOid && format !== 'binary') return toIsoList as never;
      if (parseJson !== undefined && jsonOids.includes(oid)) return parseJson as never;
      return pg.types.getTypeParser(oid, format as 'text') as never;
    },
  };
}

/** `2026-01-02 03:04:05.123456+02` → `2026-01-02T01:04:05.123456Z`. */
function toIso(text: string): string {
  const match = /^(\d{4,}-\d\d-\d\d) (\d\d:\d\d:\d\d)(?:\.(\d+))?([+-])(\d\d)(?::?(\d\d))?$/.exec(text);
  if (!match) return text; // infinity, or a year before Christ
  const [, day, time, fraction = '', sign, hours = '0', minutes = '0'] = match;
  const digits = fraction.padEnd(6, '0');
  if (hours === '00' && minutes.replace(/0/g, '') === '') return `${day}T${time}.${digits}Z`;
  const offsetMs = (sign === '-' ? -1 : 1) * (Number(hours) * 60 + Number(minutes)) * 60_000;
  const utc = new Date(Date.parse(`${day}T${time}Z`) - offsetMs).toISOString();
  return `${utc.slice(0, 19)}.${digits}Z`;
}

const uuidOid = 2950;
const uuidBytes = 16;
const textLength = 36;

// The value of each hexadecimal digit, by its character.
const noDigit = 16;
const digits = new Uint8Array(128).fill(noDigit);
for (const digit of '0123456789abcdefABCDEF') digits[digit.charCodeAt(0)] = Number.parseInt(digit, 16);

/**
 * Encodes a `uuid[]` parameter in binary: parsing a thousand ids as text costs the server more than finding their
 * rows.
 */
export function encodeUuids(ids: readonly string[]): Buffer {
  const buffer = Buffer.alloc(ids.length === 0 ? 12 : 20 + ids.length * (4 + uuidBytes));
  buffer.writeInt32BE(ids.length === 0 ? 0 : 1, 0);
  buffer.writeInt32BE(uuidOid, 8);
  if (ids.length === 0) return buffer;
  buffer.writeInt32BE(ids.length, 12);
  buffer.writeInt32BE(1, 16);
  let offset = 20;
  for (const id of ids) {
    buffer.writeInt32BE(uuidBytes, offset);
    if (!writeUuid(buffer, offset + 4, id)) throw new TypeError(`not a uuid: ${id}`);
    offset += 4 + uuidBytes;
  }
  return buffer;
}

/** Writes the digits without allocating a string for each id. Returns false if the text is not a uuid. */
function writeUuid(buffer: Buffer, start: number, id: string): boolean {
  if (id.length !== textLength) return false;
  let offset = start;
  let all = 0;
  for (let at = 0; at < textLength; at += 2) {
    if (at === 8 || at === 13 || at === 18 || at === 23) {
      if (id[at] !== '-') return false;
      at += 1;
    }
    const high = digits[id.charCodeAt(at)] ?? noDigit;
    const low = digits[id.charCodeAt(at + 1)] ?? noDigit;
    all |= high | low;
    buffer[offset] = (high << 4) | low;
    offset += 1;
  }
  return all < noDigit;
}

// JSON values of rows. The driver parses a row when it arrives, and all rows of a turn of the event loop in that turn,
// so a few large documents would delay all other work. Here only small documents are parsed at once. The others are
// parsed in separate turns, before the rows of the statement are returned.

// Smaller values are not counted; most have a few bytes.
const countedFrom = 256;
// Smaller documents wait for another turn only if very many arrive at once.
const smallChars = 8192;
// Half a megabyte of small objects takes about 35 ms to parse.
const smallCharsPerTurn = 262_144;

/** The text of a value that is parsed later. */
class UnparsedJson {
  readonly text: string;

  constructor(text: string) {
    this.text = text;
  }
}

/** One per pool. */
export class JsonValues {
  #charsInTurn = 0;
  /**
   * The number of unparsed values. It includes rows of failed statements, so later statements may check their
   * columns without need.
   */
  #unparsed = 0;

  /** Called by the driver. */
  readonly parse = (text: string): unknown => {
    if (text.length < countedFrom) return JSON.parse(text);
    if (this.#charsInTurn === 0) setImmediate(() => (this.#charsInTurn = 0));
    const limit = text.length < smallChars ? smallCharsPerTurn : largeBytes;
    // This includes the first of a turn if it is large, because the rest of the turn is not known yet.
    if (this.#charsInTurn + text.length > limit) {
      this.#unparsed += 1;
      return new UnparsedJson(text);
    }
    this.#charsInTurn += text.length;
    return JSON.parse(text);
  };

  get isComplete(): boolean {
    return this.#unparsed === 0;
  }

  /** Parses the remaining values of the rows, in as many turns as needed. */
  async complete<R extends object>(rows: R[]): Promise<R[]> {
    let charsLeft = 0;
    for (const row of rows as Record<string, unknown>[]) {
      for (const name in row) {
        const value = row[name];
        if (!(value instanceof UnparsedJson)) continue;
        this.#unparsed -= 1;
        const { text } = value;
        if (text.length >= largeBytes) {
          row[name] = await parseJsonInTurns(text);
          continue;
        }
        if (text.length > charsLeft) {
          await ownTurn();
          charsLeft = largeBytes;
        }
        charsLeft -= text.length;
        row[name] = JSON.parse(text);
      }
    }
    return rows;
  }
}
