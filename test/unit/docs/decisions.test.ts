// docs/decisions/README.md lists every decision record with the title, date and status that the record states.
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { packageRoot } from '../../../server/kernel/environment.ts';

const folder = join(packageRoot(), 'docs/decisions');
const records = readdirSync(folder)
  .filter((name) => name.endsWith('.md') && name !== 'README.md')
  .sort();

test('the index lists every decision as its record states it', () => {
  const rows = records.map((name) => {
    const text = readFileSync(join(folder, name), 'utf8');
    const [, number, title] = /^# (\d{4}): (.+)$/m.exec(text) ?? [];
    const [, date, status] = /^Date: (\d{4}-\d{2}-\d{2})\. Status: (.+)\.$/m.exec(text) ?? [];
    return `| [${number}](${name}) | ${title} | ${date} | ${status} |`;
  });
  const index = readFileSync(join(folder, 'README.md'), 'utf8');
  expect(index.split('\n').filter((line) => line.startsWith('| ['))).toEqual(rows);
});

test('decisions are numbered without gaps, and files begin with their number', () => {
  expect(records.map((name) => name.slice(0, 5))).toEqual(
    records.map((_, index) => `${String(index + 1).padStart(4, '0')}-`),
  );
});
