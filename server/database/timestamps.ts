// timestamptz is read as ISO text with microseconds, not as a Date, which would drop them and break cursors. int8 stays
// text: identity values can exceed 2^53.
import pg from 'pg';

const timestamptzOid = 1184;
// created_at, run_at, started_at, and one more.
const cacheSize = 4;

/** One per pool or client: caches a few texts, because rows of one result mostly share their times. */
export function createTypeParsers(): pg.CustomTypesConfig {
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
