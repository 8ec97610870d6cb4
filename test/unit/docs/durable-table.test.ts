// The table of faults and durable calls in docs/testing.md has exactly the tests of waits-under-faults.test.ts, which makes one of
// each entry of `faults` in each entry of `middle`.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { packageRoot } from '../../../server/kernel/environment.ts';

const read = (file: string) => readFileSync(join(packageRoot(), file), 'utf8');
const source = read('test/integration/durable/waits-under-faults.test.ts');

/** The keys of a constant object of the test file. */
function keysOf(name: string): string[] {
  const [, body = ''] = new RegExp(`^const ${name} = \\{\\n(.*?)^\\} satisfies`, 'ms').exec(source) ?? [];
  return [...body.matchAll(/^ {2}(?:async )?(?:'([^']+)'|(\w+))(?:: |\()/gm)].map(
    ([, quoted, plain]) => quoted ?? plain ?? '',
  );
}

test('every cell of the table of durable calls under faults is a test', () => {
  const [, section = ''] = /^## Durable calls under faults\n(.*?)^## /ms.exec(read('docs/testing.md')) ?? [];
  const [header = [], , ...rows] = section
    .split('\n')
    .filter((line) => line.startsWith('|'))
    .map((line) =>
      line
        .split('|')
        .slice(1, -1)
        .map((cell) => cell.trim()),
    );
  const kinds = header.slice(1, -1);
  expect(kinds).toEqual(keysOf('middle'));
  expect(rows.map(([fault]) => fault)).toEqual(keysOf('faults'));
  for (const [fault, ...cells] of rows) {
    expect(cells.slice(0, -1)).toEqual(kinds.map((kind) => `${fault} in ${kind}`));
  }
  expect(rows.length * kinds.length).toBe(35);
  // The names of the tests come from these lines.
  expect(source).toMatch(/describe\.each\(Object\.keys\(faults\).*\)\('%s',/);
  expect(source).toMatch(/test\.each\(Object\.keys\(middle\).*\)\('in %s',/);
});
