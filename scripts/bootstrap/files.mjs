// The files that the bootstrap compares.
import { createHash } from 'node:crypto';
import { existsSync, readFileSync } from 'node:fs';
import { dirname } from 'node:path';
import { fileURLToPath } from 'node:url';

export const root = dirname(dirname(dirname(fileURLToPath(import.meta.url))));

/** Its message is all that a person needs: no stack. */
export class UserError extends Error {}

export function hashOf(files) {
  const hash = createHash('sha256');
  for (const file of files)
    hash
      .update(`${file.slice(root.length)}\n`)
      .update(readFileSync(file))
      .update('\n');
  return hash.digest('hex');
}

export function readOr(file) {
  return existsSync(file) ? readFileSync(file, 'utf8') : undefined;
}
