// Loads the handlers that HANDLERS names: one module, or every module of a directory. An invalid module fails the boot
// with the file and the reason.
import { readdir, stat } from 'node:fs/promises';
import { join, resolve } from 'node:path';
import { ConfigError } from '../../kernel/config.ts';
import { errorMessage } from '../../kernel/errors.ts';
import type { JobDefinition } from './define-job.ts';
import { loadDefinitions } from './load-module.ts';

const modulePattern = /\.[cm]?[jt]sx?$/;
// Types, tests, and what a leading underscore or dot marks as no handler.
const ignoredPattern = /(\.d\.[cm]?ts|\.(test|spec)\.[cm]?[jt]sx?)$|(^|[\\/])([_.]|node_modules)/;

/** `path` is relative to `directory`, by default the working directory. */
export async function loadHandlers(path: string, directory = process.cwd()): Promise<JobDefinition[]> {
  const root = resolve(directory, path);
  const files = await findModules(root, path);
  const definitions = new Map<string, JobDefinition>();
  for (const file of files) {
    const found = await loadFile(file);
    for (const definition of found) {
      const other = definitions.get(definition.type);
      if (other !== undefined) fail(file, `job type "${definition.type}" is already defined in ${other.file}`);
      definitions.set(definition.type, definition);
    }
  }
  return [...definitions.values()];
}

async function findModules(root: string, path: string): Promise<string[]> {
  const info = await stat(root).catch(() => undefined);
  if (info === undefined) throw new ConfigError(`HANDLERS=${path}: there is no such file or directory (${root})`);
  if (!info.isDirectory()) {
    if (!modulePattern.test(root)) throw new ConfigError(`HANDLERS=${path}: is neither a module nor a directory`);
    return [root];
  }
  const names = await readdir(root, { recursive: true });
  const files = names.filter((name) => modulePattern.test(name) && !ignoredPattern.test(name)).sort();
  if (files.length === 0) throw new ConfigError(`HANDLERS=${path}: the directory has no modules (${root})`);
  return files.map((name) => join(root, name));
}

async function loadFile(file: string): Promise<JobDefinition[]> {
  let found: JobDefinition[];
  try {
    found = await loadDefinitions(file);
  } catch (error) {
    return fail(file, errorMessage(error));
  }
  if (found.length === 0) {
    fail(file, 'exports no job made with defineJob (a module that is none starts with an underscore)');
  }
  return found;
}

function fail(file: string, reason: string): never {
  throw new ConfigError(`handler ${file}: ${reason}`);
}
