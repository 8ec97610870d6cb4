// What every program of the package finds out about its surroundings before anything else: settings from
// `.env`, and its own version.
import { existsSync, readFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { ConfigError } from './config.ts';
import { errorMessage } from './errors.ts';
import { packageRoot } from './package-root.ts';

/** Adds the settings of `.env` in the working directory to the environment; what is set there already wins. */
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
