// `npm run names`: refuses retired words in the names of files, functions, types, members and variables,
// two files with one base name, two in one folder whose names differ by a plural, folders of more than 15 files and files
// of more than 300 lines. CONTRIBUTING.md has the glossary: one word for one idea.
import { readdirSync, readFileSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import ts from 'typescript';

const root = dirname(dirname(dirname(fileURLToPath(import.meta.url))));

/** Word of a name (split at capitals, underscores and digits) → what to write instead. */
const retired = {
  told: 'recorded, notified, published',
  tell: 'record, notify, publish, report',
  hear: 'receive, onResults',
  heard: 'received',
  stir: 'wake',
  stirred: 'woken',
  hungry: 'waiting',
  rival: 'waiter',
  rivals: 'waiters',
  aftermath: 'event consumers',
  newborn: 'inserted',
  disown: 'release',
  hurry: 'now (refreshNow, runNow)',
  hurried: 'now',
  reign: 'head',
  succession: 'advance',
  settle: 'finish',
  settled: 'finished',
  settler: 'outcome writer',
  settlers: 'outcome writers',
  settlement: 'finish result',
  survey: 'probe',
  duty: 'task state',
  fleet: 'daemons, workers',
  fault: 'violation, error',
  faults: 'violations, errors',
  most: 'max',
  longest: 'max',
  largest: 'max',
  deepest: 'max',
  least: 'min',
  acted: 'action result',
  overruled: 'superseded',
  unasked: 'noStopRequest',
  whoever: 'holder, caller',
  patient: 'long (longTimeouts)',
  patience: 'timeout',
  said: 'reported',
  knows: 'has',
  wants: 'needs, requests',
  learn: 'read, receive',
  learned: 'read, received',
  rests: 'isIdle',
  resting: 'idle',
};

/** Two words that are fine alone. */
const retiredPairs = { give: ['back'], goes: ['back', 'on'], may: ['be'], look: ['on', 'for'], go: ['on'] };

// test/faults and the conformance proxy inject faults.
const inServerOnly = new Set(['fault', 'faults']);

const problems = [];
const files = ['server', 'test', 'scripts'].flatMap((folder) =>
  readdirSync(join(root, folder), { recursive: true, encoding: 'utf8' })
    .filter((file) => /\.(ts|tsx|mjs)$/.test(file) && !file.includes('node_modules'))
    .map((file) => join(folder, file)),
);

for (const file of files) {
  for (const word of findRetired(file, basename(file).replace(/\.\w+$/, '')))
    problems.push(`${file}: file name: ${word}`);
  const source = ts.createSourceFile(file, readFileSync(join(root, file), 'utf8'), ts.ScriptTarget.Latest, true);
  for (const name of declaredNames(source)) {
    for (const word of findRetired(file, name.text.replace(/^#/, ''))) {
      const { line } = source.getLineAndCharacterOfPosition(name.getStart(source));
      problems.push(`${file}:${line + 1}: ${name.text}: ${word}`);
    }
  }
}
for (const [name, same] of groupByName()) {
  if (same.length > 1) problems.push(`two files are called ${name}: ${same.join(', ')}`);
}

for (const file of files.filter((name) => name.startsWith('server'))) {
  // The dashboard has pages for one item and for many.
  const plural = file.replace(/(\.tsx?)$/, 's$1');
  if (files.includes(plural) && !file.startsWith('server/dashboard'))
    problems.push(`one letter apart: ${file} and ${basename(plural)}`);
}

// Limits for readers, in tests too. Generated files are exempt.
const maxFilesInFolder = 15;
const maxLines = 300;
const written = files.filter((file) => file.startsWith('server') && !file.includes('/generated/'));
const tests = files.filter((file) => file.startsWith('test'));
for (const [folder, count] of countBy([...written, ...tests].map((file) => dirname(file)))) {
  if (count > maxFilesInFolder)
    problems.push(`${folder} has ${count} files; more than ${maxFilesInFolder} want subfolders`);
}
for (const file of written) {
  const lines = readFileSync(join(root, file), 'utf8').trimEnd().split('\n').length;
  if (lines > maxLines) problems.push(`${file} has ${lines} lines; more than ${maxLines} want two files`);
}

if (problems.length > 0) {
  console.error(problems.join('\n'));
  console.error(`\n${problems.length} problems; CONTRIBUTING.md has the glossary and the rules of the tree`);
  process.exitCode = 1;
} else {
  console.log(`the names in ${files.length} files use no retired word`);
}

function* declaredNames(node) {
  const { name } = node;
  if (name && (ts.isIdentifier(name) || ts.isPrivateIdentifier(name)) && isDeclaration(node)) yield name;
  const children = [];
  ts.forEachChild(node, (child) => void children.push(child));
  for (const child of children) yield* declaredNames(child);
}

function isDeclaration(node) {
  return (
    ts.isFunctionDeclaration(node) ||
    ts.isClassDeclaration(node) ||
    ts.isInterfaceDeclaration(node) ||
    ts.isTypeAliasDeclaration(node) ||
    ts.isVariableDeclaration(node) ||
    ts.isMethodDeclaration(node) ||
    ts.isMethodSignature(node) ||
    ts.isPropertyDeclaration(node) ||
    ts.isPropertySignature(node) ||
    ts.isGetAccessorDeclaration(node) ||
    ts.isParameter(node)
  );
}

function* findRetired(file, name) {
  const words = name
    .replace(/([a-z0-9])([A-Z])/g, '$1 $2')
    .split(/[\s_.-]+/)
    .map((word) => word.toLowerCase());
  for (const [i, word] of words.entries()) {
    if (inServerOnly.has(word) && !file.startsWith('server')) continue;
    if (Object.hasOwn(retired, word)) yield `"${word}" is retired; write ${retired[word]}`;
    if (retiredPairs[word]?.includes(words[i + 1])) yield `"${word} ${words[i + 1]}" is retired`;
  }
}

function countBy(values) {
  const counts = new Map();
  for (const value of values) counts.set(value, (counts.get(value) ?? 0) + 1);
  return counts;
}

function groupByName() {
  const byName = new Map();
  for (const file of files.filter((name) => name.startsWith('server'))) {
    const name = basename(file);
    // The folder says what an entry point, a command, a resource or a table is about.
    if (['index.ts', 'main.ts', 'main.tsx'].includes(name)) continue;
    if (/^server\/(cli\/commands|http\/resources|database\/tables|dashboard)\//.test(file)) continue;
    byName.set(name, [...(byName.get(name) ?? []), file]);
  }
  return byName;
}
