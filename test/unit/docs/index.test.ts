// A reader finds every page from the README.
import { readdirSync, readFileSync } from 'node:fs';
import { dirname, join, normalize } from 'node:path';
import { expect, test } from 'vitest';
import { packageRoot } from '../../../server/kernel/environment.ts';

const root = packageRoot();

function linksOf(page: string): string[] {
  const text = readFileSync(join(root, page), 'utf8');
  return [...text.matchAll(/\]\((?!https?:)([^)#\s]+\.md)(?:#[^)]*)?\)/g)].map(([, target = '']) =>
    normalize(join(dirname(page), target)),
  );
}

test('the README, or an index that it links, lists every page of the documentation', () => {
  const pages = readdirSync(join(root, 'docs'), { recursive: true, encoding: 'utf8' })
    .filter((name) => name.endsWith('.md'))
    .map((name) => join('docs', name));
  const direct = linksOf('README.md');
  const indexes = direct.filter((page) => page.endsWith('README.md'));
  const listed = new Set([...direct, ...indexes.flatMap(linksOf)]);
  expect(pages.length).toBeGreaterThan(25);
  expect(pages.filter((page) => !listed.has(page))).toEqual([]);
});
