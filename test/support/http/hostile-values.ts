// Values that a client should not send, for any field.

/** For paths, queries and texts. */
export const hostileTexts = [
  '',
  "'; drop schema leasehold cascade; --",
  'a\u0000b',
  'x\ud800y',
  '\u202e𝄞\u200d\ufeff',
  '__proto__',
  '../../leasehold',
  '99999999999999999999',
  '0000-01-01T00:00:00Z',
  'x'.repeat(5000),
];

/** For fields of a body. */
export const hostileValues: unknown[] = [
  ...['', "'; drop schema leasehold cascade; --", 'a\u0000b', 'x\ud800y', '__proto__', 'x'.repeat(5000)],
  ...[null, -1, 1e308, []],
  JSON.parse('{"__proto__":{"admin":true},"constructor":{"prototype":1}}'),
  deep(150),
];

function deep(levels: number): unknown {
  let value: unknown = 'end';
  for (let n = 0; n < levels; n++) value = n % 2 === 0 ? [value] : { a: value };
  return value;
}
