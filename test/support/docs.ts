// The code blocks of a page of the documentation.
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { packageRoot } from '../../server/kernel/environment.ts';

export interface Snippet {
  language: string;
  /** What follows the language: for example the name of a file. */
  info: string;
  text: string;
}

export async function readSnippets(file: string): Promise<Snippet[]> {
  const text = await readFile(join(packageRoot(), file), 'utf8');
  return [...text.matchAll(/^```(\w+) ?([^\n]*)\n(.*?)^```$/gms)].map(([, language = '', info = '', body = '']) => ({
    language,
    info,
    text: body,
  }));
}
