// The client compiles without the types of Node: what browsers and edge runtimes lack is not used, and its declarations
// need nothing that is not installed there.
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import ts from 'typescript';
import { expect, test } from 'vitest';
import { packageRoot } from '../../../server/kernel/environment.ts';

const folder = join(packageRoot(), 'server/client');

test('the client uses only globals that browsers have', () => {
  const files = readdirSync(folder, { recursive: true, encoding: 'utf8' })
    .filter((name) => name.endsWith('.ts'))
    .map((name) => join(folder, name));
  const program = ts.createProgram(files, {
    target: ts.ScriptTarget.ES2022,
    lib: ['lib.es2022.d.ts', 'lib.dom.d.ts'],
    types: [],
    module: ts.ModuleKind.ESNext,
    moduleResolution: ts.ModuleResolutionKind.Bundler,
    allowImportingTsExtensions: true,
    noEmit: true,
    strict: true,
    exactOptionalPropertyTypes: true,
    skipLibCheck: true,
  });
  const errors = ts.getPreEmitDiagnostics(program).map(({ file, messageText }) => {
    return `${file?.fileName ?? ''}: ${ts.flattenDiagnosticMessageText(messageText, '\n')}`;
  });
  expect(errors).toEqual([]);
  const packages = program.getSourceFiles().filter(({ fileName }) => /node_modules\/(?!typescript\/)/.test(fileName));
  expect(packages.map(({ fileName }) => fileName)).toEqual([]);
});
