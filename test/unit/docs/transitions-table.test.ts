import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { transitions } from '../../../server/jobs/model/states.ts';
import { packageRoot } from '../../../server/kernel/environment.ts';

it('the table of transitions in docs/concepts.md is the one in the code', () => {
  const page = readFileSync(join(packageRoot(), 'docs/concepts.md'), 'utf8');
  const table = /<!-- transitions[^>]*-->\n([\s\S]*?)\n<!-- \/transitions -->/.exec(page)?.[1] ?? '';
  const rows = Object.entries(transitions).map(
    ([name, { from, to, when, event }]) =>
      `| \`${name}\` | ${from.join(', ') || '–'} | ${to} | ${when} | \`${event}\` |`,
  );
  expect(table.split('\n').slice(2)).toEqual(rows);
});
