// Writes the declarations of the package's entry points into a directory: `node scripts/declarations.mjs dist`. Each
// module is transpiled by itself, in about a second for all. What they may import is limited: users check these files
// with their own compiler, and must not need the types of Postgres drivers or of web frameworks for that.
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';
import ts from 'typescript';

const root = dirname(dirname(fileURLToPath(import.meta.url)));
const server = join(root, 'server');
const outDir = process.argv[2];
if (outDir === undefined) {
  console.error('usage: node scripts/declarations.mjs <directory>');
  process.exit(2);
}

const allowedPackages = ['zod', 'node:http'];
const { config } = ts.readConfigFile(join(root, 'tsconfig.json'), ts.sys.readFile);
const { options } = ts.convertCompilerOptionsFromJson(
  { ...config.compilerOptions, declaration: true, isolatedDeclarations: true, stripInternal: true, noEmit: false },
  root,
);
const errors = [];
const written = new Set();
for (const entry of entryPoints()) write(entry, []);
if (errors.length > 0) {
  console.error(errors.join('\n'));
  process.exit(1);
}

/** The sources behind the types of package.json's exports. */
function entryPoints() {
  const { exports } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'));
  return Object.values(exports).flatMap(({ types }) =>
    types === undefined ? [] : join(server, relative('dist', types).replace(/\.d\.ts$/, '.ts')),
  );
}

/** The declarations of a module, and of the modules that they mention. */
function write(file, importers) {
  if (written.has(file)) return;
  written.add(file);
  const { outputText, diagnostics = [] } = ts.transpileDeclaration(readFileSync(file, 'utf8'), {
    fileName: file,
    reportDiagnostics: true,
    compilerOptions: options,
  });
  const chain = [...importers, relative(root, file)];
  for (const { messageText, start = 0, file: source } of diagnostics) {
    const line = source === undefined ? 0 : source.getLineAndCharacterOfPosition(start).line + 1;
    errors.push(`${chain.join(' > ')}:${line}: ${ts.flattenDiagnosticMessageText(messageText, '\n')}`);
  }
  for (const { fileName } of ts.preProcessFile(outputText, true, true).importedFiles) {
    if (fileName.startsWith('.')) write(join(dirname(file), fileName), chain);
    else if (!allowedPackages.includes(fileName)) errors.push(`${chain.join(' > ')} mentions types of ${fileName}`);
  }
  const target = join(outDir, relative(server, file).replace(/\.ts$/, '.d.ts'));
  mkdirSync(dirname(target), { recursive: true });
  writeFileSync(target, tidy(outputText));
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
