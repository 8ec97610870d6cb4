// Every file and folder that a document names exists, and docs/architecture.md has a line for every folder of server/.
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { packageRoot } from '../../../server/kernel/environment.ts';

const root = packageRoot();
const read = (page: string) => readFileSync(join(root, page), 'utf8');

const pages = readdirSync(join(root, 'docs'), { recursive: true, encoding: 'utf8' })
  .filter((name) => name.endsWith('.md'))
  .map((name) => join('docs', name));

test.each(['README.md', 'CONTRIBUTING.md', ...pages])('%s names files that exist', (page) => {
  const named = [...read(page).matchAll(/`((?:server|test|scripts|docs|migrations)\/[\w./-]+)`/g)].map(
    ([, path]) => path,
  );
  expect(named.filter((path = '') => !existsSync(join(root, path)))).toEqual([]);
});

test('every promise of docs/guarantees.md names its tests and its limits, and every scenario that it names exists', () => {
  const page = read('docs/guarantees.md');
  const sections = page.split(/^## /m).slice(1);
  const promises = sections.filter((section) => /^- (Tests|Limits):/m.test(section));
  expect(promises.length).toBeGreaterThan(12);
  const isComplete = (section: string) =>
    /^- Tests:.*?(`test\/[^`]+\.test\.ts`|scenario).*^- Limits: \S/ms.test(section);
  expect(promises.filter((section) => !isComplete(section)).map((section) => section.split('\n')[0])).toEqual([]);
  const scenarios = readdirSync(join(root, 'test/faults/scenarios')).join(' ');
  const named = new Set([...page.matchAll(/\b(a\d+)\b/g)].map(([, name = '']) => name));
  expect([...named].filter((name) => !scenarios.includes(`${name}-`))).toEqual([]);
});

const architecture = read('docs/architecture.md');

test('every file that the architecture page names exists', () => {
  const prose = architecture.replaceAll(/^```.*?^```/gms, '');
  const named = [...prose.matchAll(/`([\w.-]+(?:\/[\w.-]*)*(?:\.ts|\/))`/g)].map(([, path = '']) => path);
  expect(named.length).toBeGreaterThan(50);
  // `states.ts` alone refers to a file that the same page names in full.
  const full = named.filter((path) => path.includes('/') || !named.some((other) => other.endsWith(`/${path}`)));
  const exists = (path: string) => existsSync(join(root, 'server', path)) || existsSync(join(root, path));
  expect(full.filter((path) => !exists(path))).toEqual([]);
});

test('the tree of the architecture page is the tree of server/', () => {
  const [, tree = ''] = /^```tree\n(.*?)^```/ms.exec(architecture) ?? [];
  const listed = [...tree.matchAll(/^([\w/-]+)\/ +\S/gm)].map(([, folder]) => folder);
  const folders = readdirSync(join(root, 'server'), { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isDirectory())
    .map((entry) => join(entry.parentPath, entry.name).slice(join(root, 'server/').length))
    // A folder that only groups others needs no line.
    .filter((folder) => readdirSync(join(root, 'server', folder)).some((name) => /\.[jt]sx?$/.test(name)));
  expect(listed.toSorted()).toEqual(
    [...new Set([...folders, ...(listed.includes('worker') ? ['worker'] : [])])].toSorted(),
  );
});

test('the walk of a job has at most 40 changes of file, and each call is in the file above it', () => {
  const [, walk = ''] = /^```walk\n(.*?)^```/ms.exec(architecture) ?? [];
  const steps = walk
    .trimEnd()
    .split('\n')
    .map((line) => {
      const [, mark = '', file = '', call = ''] = /^(.) (\S+)\s*(.*)$/.exec(line) ?? [];
      return { mark, file, call };
    });
  const source = (file: string) => read(join('server', file));
  const wrong = steps.filter(({ mark, file, call }, n) => {
    const before = steps[n - 1];
    if (before === undefined) return !existsSync(join(root, 'server', file));
    if (mark === '←') return !steps.slice(0, n - 1).some((earlier) => earlier.file === file);
    return call === '' || !source(before.file).includes(call) || !existsSync(join(root, 'server', file));
  });
  expect(wrong).toEqual([]);
  expect(steps.length).toBeGreaterThan(30);
  expect(steps.length - 1).toBeLessThanOrEqual(40);
});
