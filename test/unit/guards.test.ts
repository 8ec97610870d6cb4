// Every patch that takes a guard out still applies to today's source, and its tests exist.
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { packageRoot } from '../../server/kernel/environment.ts';
import { withoutGuard } from '../guards/guard.ts';
import { guards } from '../guards/guards.ts';

const root = packageRoot();
const read = (file: string) => readFileSync(join(root, file), 'utf8');

test.each(guards)('$name', (guard) => {
  const source = read(guard.file);
  expect(withoutGuard(guard, source)).not.toBe(source);
  const [file = '', ...others] = guard.tests.filter((argument) => argument.startsWith('test/'));
  for (const one of [file, ...others]) expect(existsSync(join(root, one)), one).toBe(true);
});

test('the table of guards in docs/guarantees.md lists every guard, and by what it was caught', () => {
  const [, table = ''] = /<!-- guards -->\n([\s\S]*?)<!-- \/guards -->/.exec(read('docs/guarantees.md')) ?? [];
  const rows = [...table.matchAll(/^\| ([^|]+) \| ([^|]+) \| ([^|]+) \|$/gm)].slice(1);
  expect(rows.map(([, name]) => name)).toEqual(guards.map(({ name }) => name));
  for (const [, name, , caught = ''] of rows) expect(caught, name).not.toContain('not caught');
});
