// `npm run docs:check`: every relative link and anchor of the documentation leads somewhere, every path of
// this repository that it names exists, and every code block parses (TypeScript, JSON, shell, SQL is skipped). Every
// source file that a comment in server/ or test/, a decision or the architecture page names exists too.
import { spawnSync } from 'node:child_process';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { dirname, join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';
import ts from 'typescript';

const root = dirname(dirname(dirname(fileURLToPath(import.meta.url))));
const pages = [
  ...readdirSync(root).filter((name) => name.endsWith('.md')),
  ...readdirSync(join(root, 'docs'), { recursive: true, encoding: 'utf8' })
    .filter((name) => name.endsWith('.md') && !name.includes('node_modules'))
    .map((name) => join('docs', name)),
];
const problems = [];
const counts = { links: 0, paths: 0, blocks: 0, files: 0 };
for (const page of pages) checkPage(page, readFileSync(join(root, page), 'utf8'));
checkFileNames();

if (problems.length > 0) {
  console.error(problems.join('\n'));
  process.exitCode = 1;
} else {
  const { links, paths, blocks, files } = counts;
  console.log(
    `${pages.length} pages: ${links} links, ${paths} paths and ${blocks} code blocks are right, and ${files} names of files`,
  );
}

function checkPage(page, text) {
  const prose = text.replace(/^```[\s\S]*?^```/gm, (block) => block.replace(/[^\n]/g, ' '));
  for (const match of prose.matchAll(/\]\(([^)\s]+)\)|(?:src|srcset|href)="([^"]+)"/g)) {
    checkLink(page, match[1] ?? match[2], lineOf(text, match.index));
  }
  for (const match of prose.matchAll(/`((?:server|test|scripts|docs|migrations)\/[\w./-]+)`/g)) {
    counts.paths += 1;
    if (!existsSync(join(root, match[1]))) report(page, lineOf(text, match.index), `${match[1]} does not exist`);
  }
  for (const match of text.matchAll(/^```(\w+)?[^\n]*\n([\s\S]*?)^```/gm)) {
    checkBlock(page, lineOf(text, match.index), match[1] ?? '', match[2] ?? '');
  }
}

function checkLink(page, target, line) {
  if (/^(https?|mailto):/.test(target)) return;
  counts.links += 1;
  const [path, anchor] = target.split('#');
  const file = path === '' ? join(root, page) : join(root, dirname(page), path);
  if (!existsSync(file)) return report(page, line, `the link to ${target} leads nowhere`);
  if (anchor && file.endsWith('.md') && !anchorsOf(readFileSync(file, 'utf8')).has(anchor)) {
    report(page, line, `${relative(root, file)} has no heading #${anchor}`);
  }
}

/** Names such as `claim/claim.ts`: a file of that name must exist, in a folder of that name if one is given. */
function checkFileNames() {
  const sources = ['server', 'test', 'scripts', 'docs'].flatMap((folder) =>
    readdirSync(join(root, folder), { recursive: true, encoding: 'utf8' })
      .filter((name) => /\.(ts|tsx|mjs)$/.test(name) && !name.includes('node_modules'))
      .map((name) => join(folder, name).replaceAll('\\', '/')),
  );
  const check = (file, line, text) => {
    for (const [name] of text.matchAll(/(?<![\w./-])(?:[\w-]+\/)*[\w-]+\.(?:tsx?|mjs)\b/g)) {
      counts.files += 1;
      if (!sources.some((source) => `/${source}`.endsWith(`/${name}`))) report(file, line, `${name} does not exist`);
    }
  };
  for (const file of sources.filter((name) => /^(server|test)\//.test(name))) {
    for (const [n, line] of readFileSync(join(root, file), 'utf8').split('\n').entries()) {
      const comment = /^\s*(?:\/\/|\/?\*)(.*)$/.exec(line)?.[1];
      if (comment !== undefined) check(file, n + 1, comment);
    }
  }
  for (const page of pages.filter((name) => /architecture\.md$|decisions/.test(name))) {
    for (const [n, line] of readFileSync(join(root, page), 'utf8').split('\n').entries()) check(page, n + 1, line);
  }
}

/** As the renderers of this format make them: lower case, punctuation dropped, blanks to hyphens. */
function anchorsOf(text) {
  const headings = text.matchAll(/^#{1,6}\s+(.+)$/gm);
  return new Set(
    [...headings].map((heading) =>
      heading[1]
        .trim()
        .toLowerCase()
        .replace(/[^\p{L}\p{N}\s_-]/gu, '')
        .replace(/\s/g, '-'),
    ),
  );
}

function checkBlock(page, line, language, code) {
  const problem = problemOf(language, code);
  if (problem === undefined) return;
  counts.blocks += 1;
  if (problem !== '') report(page, line, `the ${language} block does not parse: ${problem}`);
}

/** '' if it parses, undefined where the language is not checked. */
function problemOf(language, code) {
  if (['ts', 'typescript', 'js', 'javascript', 'tsx'].includes(language)) {
    const { diagnostics } = ts.transpileModule(code, {
      reportDiagnostics: true,
      fileName: language === 'tsx' ? 'block.tsx' : 'block.ts',
      compilerOptions: { target: ts.ScriptTarget.ESNext, module: ts.ModuleKind.ESNext },
    });
    return (diagnostics ?? []).map((d) => ts.flattenDiagnosticMessageText(d.messageText, ' ')).join('; ');
  }
  if (language === 'json') {
    try {
      JSON.parse(code);
      return '';
    } catch (error) {
      return error.message;
    }
  }
  if (['sh', 'bash', 'shell'].includes(language)) {
    const { status, stderr, error } = spawnSync('bash', ['-n'], { input: code, encoding: 'utf8' });
    return error || status === 0 ? '' : stderr.trim();
  }
  return undefined;
}

function lineOf(text, index) {
  return text.slice(0, index).split('\n').length;
}

function report(page, line, message) {
  problems.push(`${page}:${line}: ${message}`);
}
