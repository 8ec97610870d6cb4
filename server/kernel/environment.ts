// The values that every program of the package reads first: `.env`, the package's directory and its version.
import { existsSync, readFileSync } from 'node:fs';
import { dirname, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { ConfigError } from './config.ts';
import { errorMessage } from './errors.ts';

/** Adds the settings of `.env` in the working directory to the environment, whose values take precedence. */
export function loadEnvFile(): void {
  const file = resolve('.env');
  if (!existsSync(file)) return;
  try {
    process.loadEnvFile(file);
  } catch (error) {
    throw new ConfigError(`${file} cannot be read: ${errorMessage(error)}`);
  }
}

export function packageVersion(): string {
  return String(JSON.parse(readFileSync(join(packageRoot(), 'package.json'), 'utf8')).version);
}

/** The nearest directory above this file with a package.json: the same from source (server/) and from dist/. */
export function packageRoot(): string {
  const start = dirname(fileURLToPath(import.meta.url));
  for (let directory = start; ; directory = dirname(directory)) {
    if (existsSync(join(directory, 'package.json'))) return directory;
    if (dirname(directory) === directory) throw new Error(`no package.json above ${start}`);
  }
}
