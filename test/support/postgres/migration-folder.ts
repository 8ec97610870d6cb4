// A folder of migrations like drizzle-kit's, written by a test.
import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { temporaryDirectory } from '../temporary.ts';

/** Writes `{ name: sql }` in this order; returns the folder. */
export async function writeMigrations(files: Record<string, string>, folder?: string): Promise<string> {
  const directory = folder ?? (await temporaryDirectory('migrations'));
  await mkdir(join(directory, 'meta'), { recursive: true });
  const entries = Object.keys(files).map((tag, idx) => ({ idx, tag }));
  await writeFile(join(directory, 'meta', '_journal.json'), JSON.stringify({ entries }));
  for (const [name, sql] of Object.entries(files)) await writeFile(join(directory, `${name}.sql`), sql);
  return directory;
}
