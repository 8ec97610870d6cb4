// Writes the declarations of the package's entry points into a directory: `node scripts/build/declarations.mjs dist`. Each
// module is transpiled by itself, in seconds for all, and only what an entry point exports, or mentions, is kept. What
// that may import is limited: users check these files with their own compiler, and must not need the types of Postgres
// drivers or of web frameworks for it.
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';
import ts from 'typescript';

const root = dirname(dirname(dirname(fileURLToPath(import.meta.url))));
const server = join(root, 'server');
const outDir = process.argv[2];
if (outDir === undefined) {
  console.error('usage: node scripts/build/declarations.mjs <directory>');
  process.exit(2);
}

const allowedPackages = ['zod', 'node:http'];
const { config } = ts.readConfigFile(join(root, 'tsconfig.json'), ts.sys.readFile);
const { options } = ts.convertCompilerOptionsFromJson(
  { ...config.compilerOptions, declaration: true, isolatedDeclarations: true, stripInternal: true, noEmit: false },
  root,
);
const errors = [];
/** By file: its declarations, and the names of them that are kept. */
const modules = new Map();
for (const entry of entryPoints()) keep(entry, '*', []);
for (const [file, module] of modules) write(file, module);
if (errors.length > 0) {
  console.error([...new Set(errors)].join('\n'));
  process.exit(1);
}

/** The sources behind the types of package.json's exports. */
function entryPoints() {
  const { exports } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'));
  return Object.values(exports).flatMap(({ types }) =>
    types === undefined ? [] : join(server, relative('dist', types).replace(/\.d\.ts$/, '.ts')),
  );
}

/** Keeps a name of a module (`*`: all it exports), and whatever its declaration mentions. */
function keep(file, name, importers) {
  const module = load(file);
  if (module.kept.has(name)) return;
  module.kept.add(name);
  const chain = [...importers, relative(root, file)];
  for (const statement of module.statements) {
    const isWanted = name === '*' ? isExported(statement.node) : statement.names.includes(name);
    if (!isWanted && !statement.reexportsAll) continue;
    follow(file, module, statement, name, chain);
  }
}

function follow(file, module, statement, name, chain) {
  if (statement.from !== undefined) {
    for (const wanted of statement.reexportsAll ? [name] : statement.sources(name))
      enter(file, statement.from, wanted, chain);
    return;
  }
  for (const error of module.errorsOf(statement.names)) errors.push(`${chain.join(' > ')}: ${error}`);
  for (const mentioned of statement.mentions) {
    const imported = module.imports.get(mentioned);
    if (imported !== undefined) enter(file, imported.from, imported.name, chain);
    else if (module.declares(mentioned)) keep(file, mentioned, chain.slice(0, -1));
    if (imported !== undefined) module.kept.add(mentioned);
  }
}

function enter(file, from, name, chain) {
  if (from.startsWith('.')) return keep(join(dirname(file), from), name, chain);
  if (!allowedPackages.includes(from)) errors.push(`${chain.join(' > ')} mentions types of ${from}`);
}

function load(file) {
  const known = modules.get(file);
  if (known !== undefined) return known;
  const source = readFileSync(file, 'utf8');
  const { outputText, diagnostics = [] } = ts.transpileDeclaration(source, {
    fileName: file,
    reportDiagnostics: true,
    compilerOptions: options,
  });
  const original = ts.createSourceFile(file, source, ts.ScriptTarget.Latest, true);
  const tree = ts.createSourceFile(file, tidy(outputText), ts.ScriptTarget.Latest, true);
  const imports = new Map();
  for (const node of tree.statements.filter(ts.isImportDeclaration)) {
    for (const { name, propertyName } of node.importClause?.namedBindings?.elements ?? []) {
      imports.set(name.text, { from: sourceName(node), name: (propertyName ?? name).text });
    }
    if (node.importClause?.name) imports.set(node.importClause.name.text, { from: sourceName(node), name: 'default' });
  }
  const statements = tree.statements.filter((node) => !ts.isImportDeclaration(node)).map(describe);
  const module = {
    tree,
    imports,
    statements,
    kept: new Set(),
    declares: (name) => statements.some(({ names }) => names.includes(name)),
    errorsOf: (names) => diagnostics.filter(({ start }) => names.includes(nameAt(original, start))).map(textOf),
  };
  modules.set(file, module);
  return module;
}

/** What a statement declares or exports again, and what it mentions. */
function describe(node) {
  if (ts.isExportDeclaration(node)) {
    const elements = node.exportClause?.elements ?? [];
    return {
      node,
      names: elements.map(({ name }) => name.text),
      reexportsAll: node.exportClause === undefined,
      from: sourceName(node) ?? '',
      sources: (name) =>
        elements
          .filter((one) => name === '*' || one.name.text === name)
          .map((one) => (one.propertyName ?? one.name).text),
    };
  }
  const mentions = new Set();
  const visit = (child) => {
    if (ts.isIdentifier(child)) mentions.add(child.text);
    ts.forEachChild(child, visit);
  };
  visit(node);
  return { node, names: declaredNames(node), mentions };
}

function declaredNames(node) {
  if (ts.isVariableStatement(node)) return node.declarationList.declarations.map(({ name }) => name.getText());
  return node.name === undefined ? [] : [node.name.text];
}

/** The module that a declaration names, as in the source. */
function sourceName({ moduleSpecifier }) {
  return moduleSpecifier?.text.replace(/^(\..*)\.js$/, '$1.ts');
}

/** The name that is declared around a position of the source. */
function nameAt(tree, position = 0) {
  const statement = tree.statements.find((node) => node.getStart() <= position && position < node.end);
  return statement === undefined ? undefined : declaredNames(statement)[0];
}

function textOf({ messageText, start = 0, file }) {
  const line = file === undefined ? 0 : file.getLineAndCharacterOfPosition(start).line + 1;
  return `line ${line}: ${ts.flattenDiagnosticMessageText(messageText, '\n')}`;
}

function write(file, { tree, statements, imports, kept }) {
  const all = kept.has('*');
  const isKept = (names) => names.some((name) => kept.has(name));
  const lines = tree.statements.flatMap((node) => {
    if (ts.isImportDeclaration(node)) return importOf(node, (name) => kept.has(name) && imports.has(name));
    const { names, reexportsAll } = statements.find((one) => one.node === node);
    const isPublic = all && isExported(node);
    return isPublic || reexportsAll || isKept(names) ? [node.getFullText().trim()] : [];
  });
  const target = join(outDir, relative(server, file).replace(/\.ts$/, '.d.ts'));
  mkdirSync(dirname(target), { recursive: true });
  // Users need not name Node's types in their settings: the package brings them.
  const node = lines.some((line) => line.includes("from 'node:")) ? ['/// <reference types="node" />'] : [];
  writeFileSync(target, `${[...node, ...lines, 'export {};'].join('\n')}\n`);
}

function isExported(node) {
  if (ts.isExportDeclaration(node)) return true;
  return ts.canHaveModifiers(node) && ts.getModifiers(node)?.some(({ kind }) => kind === ts.SyntaxKind.ExportKeyword);
}

function importOf(node, isUsed) {
  const bindings = (node.importClause?.namedBindings?.elements ?? []).filter(({ name }) => isUsed(name.text));
  if (bindings.length === 0) return [];
  const names = bindings.map((one) => one.getText().replace(/^type /, '')).join(', ');
  return [`import type { ${names} } from '${node.moduleSpecifier.text}';`];
}

function tidy(declarations) {
  return (
    declarations
      // As Node names the modules: compilers of all versions find the declarations beside them.
      .replace(/(from |import\()(['"])(\.[^'"]*)\.ts\2/g, '$1$2$3.js$2')
      // Without a library, the compiler writes a method that a symbol names a second time, as a property.
      .replace(/^ +(\[Symbol\.\w+\]): .*;\n(?=[^}]*^ +\1\()/gm, '')
  );
}
