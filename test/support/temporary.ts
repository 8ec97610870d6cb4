// A directory that is deleted with its test.
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { onTestFinished } from 'vitest';

export async function temporaryDirectory(name = 'scratch'): Promise<string> {
  const directory = await mkdtemp(join(tmpdir(), `leasehold-${name}-`));
  onTestFinished(() => rm(directory, { recursive: true, force: true }));
  return directory;
}
