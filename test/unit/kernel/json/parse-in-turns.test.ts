import fc from 'fast-check';
import { expect, test } from 'vitest';
import { parseJsonInTurns } from '../../../../server/kernel/json/parse-in-turns.ts';

type Read = { value: unknown } | { error: string };

function readAtOnce(text: string): Read {
  try {
    return { value: JSON.parse(text) };
  } catch (error) {
    return { error: (error as Error).message };
  }
}

async function readInTurns(text: string): Promise<Read> {
  try {
    return { value: await parseJsonInTurns(text) };
  } catch (error) {
    return { error: (error as Error).message };
  }
}

/** The same value, down to the order of its fields, or the same error. */
async function expectSame(text: string): Promise<void> {
  const [inTurns, atOnce] = [await readInTurns(text), readAtOnce(text)];
  expect(JSON.stringify(inTurns)).toBe(JSON.stringify(atOnce));
  expect(inTurns).toEqual(atOnce);
}

const long = 'x'.repeat(40_000);
const spaces = ' \t\r\n'.repeat(10_000);
const list = `[${Array.from({ length: 5000 }, (_, n) => `{"z${n}": ${n}.5e-1}`).join(' ,')}]`;

test.each([
  ['a list of objects', list],
  ['an object of lists', `{"a": ${list} , "b":${list},"c":1}`],
  ['lists in lists', `[1, ${list},[${list}], 2 ,3, [[${list}]] ]`],
  ['unsorted and repeated names', `{"b":"${long}","a":1,"b":2,"10":"${long}","9":[${list}],"a":"${long}","9":3}`],
  ['__proto__', `{"a":"${long}","__proto__":{"x":"${long}"},"b":{"__proto__":1}}`],
  ['names with escapes', `{"a\\"]}\\\\":${list},"\\u0041\\ud800":${list},"":"${long}","x":[]}`],
  ['strings of brackets', `["${'[{'.repeat(20_000)}","${'\\"]},'.repeat(20_000)}","${'\\\\'.repeat(20_000)}",1]`],
  [
    'white space',
    `${spaces}[${spaces}1${spaces},${spaces}{${spaces}"a"${spaces}:${spaces}${list}${spaces}}${spaces}]${spaces}`,
  ],
  ['empty ones', `[[],{},[${spaces}],{${spaces}},"${long}",[[]],{"a":{}}]`],
  ['numbers', `[${Array.from({ length: 20_000 }, (_, n) => `-${n}e${n % 300}`).join(',')},1e400]`],
  ['90 levels', `${'{"a":['.repeat(45)}"${long}"${']}'.repeat(45)}`],
  ['a string', `"${long}"`],
  ['a short text', '[1,{"a":2}]'],
])('%s', async (_, text) => expectSame(text));

test.each([
  ['a comma at the end of a list', `[${list},]`],
  ['at the end of an object', `{"a":${list},}`],
  ['at the beginning', `[,${list}]`],
  ['two of them', `[${list},,${list}]`],
  ['between large pieces', `["${long}",,"${long}"]`],
  ['none', `[${list} ${list}]`],
  ['a colon in a list', `["a":${list}]`],
  ['no name', `{${list}}`],
  ['no colon', `{"a" ${list}}`],
  ['two colons', `{"a"::${list}}`],
  ['a name that is a number', `{1:${list}}`],
  ['text before a list', `[x ${list}]`],
  ['text after a list', `[${list} x, 1]`],
  ['text after an object', `{"a":${list} "b", "c":1}`],
  ['text before all', `x${list}`],
  ['text after all', `${list}x`],
  ['two values', `${list}${list}`],
  ['the wrong bracket', `[${list}}`],
  ['the wrong bracket inside', `[["${long}"},1]`],
  ['too many brackets', `[${list}]]`],
  ['too few brackets', `[${list}`],
  ['a string without an end', `[${list},"${long}`],
  ['an escape without an end', `[${list},"${long}\\"]`],
  ['another space', `[${list}\u00a0,1]`],
  ['another space before a name', `{\u00a0"a":${list}}`],
  ['a line end in a string', `[${list},"\n"]`],
])('refuses text that is not JSON: %s', async (_, text) => {
  expect(readAtOnce(text)).toHaveProperty('error');
  await expectSame(text);
});

test('any value, cut or changed anywhere, is parsed as by JSON.parse', async () => {
  const padded = fc
    .jsonValue()
    .map((value) => JSON.stringify([value, { a: value, [long]: value, b: [value, long] }, long]));
  const change = fc.constantFrom('', ',', ':', '"', '[', ']', '{', '}', '\\', ' ', '1', 'null');
  const changed = fc.tuple(padded, fc.nat(), fc.nat({ max: 2 }), change).map(([text, n, removed, put]) => {
    // Not within the long strings, where nearly every place would be.
    const places = [...text.matchAll(/[^x]/g)].map((match) => match.index);
    const at = places[n % places.length] ?? 0;
    return text.slice(0, at) + put + text.slice(at + removed);
  });
  await fc.assert(fc.asyncProperty(fc.oneof(padded, changed), expectSame), { numRuns: 300 });
});

test('a large value takes several turns', async () => {
  let turns = 0;
  let isOver = false;
  const count = () => {
    turns += 1;
    if (!isOver) setImmediate(count);
  };
  setImmediate(count);
  await parseJsonInTurns(list);
  isOver = true;
  expect(turns).toBeGreaterThan(0);
});
