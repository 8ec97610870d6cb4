import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { packageRoot } from '../../../server/kernel/environment.ts';

const docs = readdirSync(join(packageRoot(), 'docs'), { recursive: true, encoding: 'utf8' }).filter((name) =>
  name.endsWith('.md'),
);

// To an interactive zsh `#` is a word like any other: KEY=… # text would run a command and set nothing.
test.each(['README.md', ...docs.map((name) => `docs/${name}`)])('the shell lines of %s have no comments', (file) => {
  const text = readFileSync(join(packageRoot(), file), 'utf8');
  const blocks = [...text.matchAll(/^```(?:sh|bash|shell)[^\n]*\n(.*?)^```$/gms)].map(([, body = '']) => body);
  expect(blocks.flatMap((block) => block.split('\n')).filter((line) => /(^|\s)#/.test(line))).toEqual([]);
});

// Outside quotes zsh takes it for a pattern: a URL with a query is "no matches found".
test.each(['README.md', ...docs.map((name) => `docs/${name}`)])('the shell lines of %s quote ?', (file) => {
  const text = readFileSync(join(packageRoot(), file), 'utf8');
  const blocks = [...text.matchAll(/^```(?:sh|bash|shell)[^\n]*\n(.*?)^```$/gms)].map(([, body = '']) => body);
  const unquoted = blocks.map((block) => block.replace(/'[^']*'|"[^"]*"/g, ''));
  expect(unquoted.flatMap((block) => block.split('\n')).filter((line) => line.includes('?'))).toEqual([]);
});

test('commands in the documents are in blocks that the checks of shell lines see', () => {
  for (const file of ['README.md', ...docs.map((name) => `docs/${name}`)]) {
    const text = readFileSync(join(packageRoot(), file), 'utf8');
    const plain = [...text.matchAll(/^```(\w*)[^\n]*\n(.*?)^```$/gms)].filter(([, language]) => language === '');
    const commands = plain.filter(([, , body = '']) => /^(?:[A-Z_]+=\S+ )?(?:curl|npm|npx|leasehold) /m.test(body));
    expect(
      commands.map(([, , body]) => body),
      file,
    ).toEqual([]);
  }
});
