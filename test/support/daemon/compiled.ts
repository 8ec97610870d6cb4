// Programs of a test, stripped of their types once: a process that only waits should not cost a compiler.
import { mkdir, mkdtemp, readFile, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';

import ts from 'typescript';
import { afterAll, beforeAll } from 'vitest';
import { packageRoot } from '../../../server/kernel/environment.ts';

const root = packageRoot();

/**
 * Compiles the files (paths from the root of the project) with their imports. `pathTo(file)` returns the output of one
 * of them.
 */
export function useCompiled(files: readonly string[]): { pathTo(file: string): string } {
  let directory = '';
  beforeAll(async () => {
    directory = await mkdtemp(join(tmpdir(), 'leasehold-compiled-'));
    await writeFile(join(directory, 'package.json'), JSON.stringify({ type: 'module' }));
    await symlink(join(root, 'node_modules'), join(directory, 'node_modules'));
    // A set that grows while it is read: imports of imports follow.
    const all = new Set(files);
    for (const file of all) {
      const text = await compile(join(root, file), toJs(join(directory, file)));
      for (const name of importsOf(text)) all.add(join(dirname(file), name));
    }
  });
  afterAll(() => rm(directory, { recursive: true, force: true }));
  return { pathTo: (file) => toJs(join(directory, file)) };
}

async function compile(from: string, to: string): Promise<string> {
  const compilerOptions: ts.CompilerOptions = {
    module: ts.ModuleKind.ESNext,
    target: ts.ScriptTarget.ES2023,
    verbatimModuleSyntax: true,
    rewriteRelativeImportExtensions: true,
  };
  const { outputText } = ts.transpileModule(await readFile(from, 'utf8'), { compilerOptions });
  await mkdir(dirname(to), { recursive: true });
  await writeFile(to, outputText);
  return outputText;
}

/** Of files beside it; types are gone already. */
function importsOf(text: string): string[] {
  return [...text.matchAll(/(?:from|import) ['"](\.[^'"]+)\.js['"]/g)].map(([, name]) => `${name}.ts`);
}

function toJs(file: string): string {
  return file.replace(/\.ts$/, '.js');
}
