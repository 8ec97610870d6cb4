// Formats of values between Postgres and the code. timestamptz is read as ISO text with microseconds, because a Date
// would drop them and break cursors. int8 stays text, because identity values can exceed 2^53. Lists of uuids are sent
// in binary.
import pg from 'pg';

const timestamptzOid = 1184;
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
  return {
    getTypeParser(oid: number, format?: 'text' | 'binary') {
      if (oid === timestamptzOid && format !== 'binary') return toIsoOnce as never;
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
