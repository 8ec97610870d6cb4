// Loads the handlers in HANDLERS: one module, or every module of a directory. An invalid module fails the boot with an
// error that names the file and the reason.
import { readdir, stat } from 'node:fs/promises';
import { join, resolve } from 'node:path';
import { pathToFileURL } from 'node:url';
import { ConfigError } from '../../kernel/config.ts';
import { errorMessage } from '../../kernel/errors.ts';
import { isDefinition, type JobDefinition } from './define-job.ts';

const modulePattern = /\.[cm]?[jt]sx?$/;
// Declarations, tests, and files with a leading underscore or dot are not handlers.
const ignoredPattern = /(\.d\.[cm]?ts|\.(test|spec)\.[cm]?[jt]sx?)$|(^|[\\/])([_.]|node_modules)/;

/** `path` is relative to `directory`, which defaults to the working directory. */
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
    fail(file, 'exports no job made with defineJob; start the names of other modules with an underscore');
  }
  return found;
}

function fail(file: string, reason: string): never {
  throw new ConfigError(`handler ${file}: ${reason}`);
}

// Imports one module of handlers, TypeScript or JavaScript, and returns the job definitions that it exports. Used by
// the daemon at boot and by the threads of isolated handlers.
export async function loadDefinitions(file: string): Promise<JobDefinition[]> {
  const exported = await importModule(file);
  const found = new Map<string, JobDefinition>();
  for (const [name, value] of Object.entries(exported)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (isDefinition(one)) {
        // The same definition may be exported twice, as itself and as the default.
        const other = found.get(one.type);
        if (other !== undefined && other !== one) throw new Error(`exports two jobs of type "${one.type}"`);
        found.set(one.type, one);
      } else if (looksLikeJob(one)) {
        throw new Error(`its export "${name}" looks like a job but was not made with defineJob`);
      }
    }
  }
  return [...found.values()].map((definition) => ({ ...definition, file }));
}

async function importModule(file: string): Promise<Record<string, unknown>> {
  const url = pathToFileURL(file).href;
  let exported: Record<string, unknown>;
  if (/\.[cm]?tsx?$/.test(file)) {
    // Loaded only if there is TypeScript to load.
    const { tsImport } = await import('tsx/esm/api');
    exported = (await tsImport(url, import.meta.url)) as Record<string, unknown>;
  } else {
    exported = (await import(url)) as Record<string, unknown>;
  }
  // A CommonJS module, or one compiled to it, has its exports below `default`.
  const inner = exported.default;
  const isNamespace = typeof inner === 'object' && inner !== null && !Array.isArray(inner) && !isDefinition(inner);
  if (!isNamespace || looksLikeJob(inner)) return exported;
  return { ...exported, default: undefined, ...(inner as Record<string, unknown>) };
}

function looksLikeJob(value: unknown): boolean {
  if (typeof value !== 'object' || value === null) return false;
  return 'type' in value && typeof value.type === 'string' && ('run' in value || 'phases' in value);
}
