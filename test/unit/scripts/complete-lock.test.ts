import { execFile } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { packageRoot } from '../../../server/kernel/environment.ts';
import { temporaryDirectory } from '../../support/temporary.ts';

interface Lock {
  packages: Record<string, { integrity?: string; optional?: boolean; cpu?: string[] }>;
}

test('the lock has every package with its integrity hash', async () => {
  expect(await check(JSON.parse(readFileSync(join(packageRoot(), 'package-lock.json'), 'utf8')))).toMatchObject({
    code: 0,
  });
});

test('a tool of another platform without an integrity hash is refused, and so is one that is missing', async () => {
  const biome = {
    version: '1.0.0',
    dev: true,
    integrity: 'sha512-x',
    optionalDependencies: { 'cli-darwin-x64': '1.0.0' },
  };
  const binary = { version: '1.0.0', dev: true, optional: true, cpu: ['x64'], os: ['darwin'] };
  expect(await check({ packages: { 'node_modules/biome': biome, 'node_modules/cli-darwin-x64': binary } })).toEqual({
    code: 1,
    output: expect.stringContaining('node_modules/cli-darwin-x64 has no integrity hash'),
  });
  expect(await check({ packages: { 'node_modules/biome': biome } })).toEqual({
    code: 1,
    output: expect.stringContaining('node_modules/cli-darwin-x64 is missing'),
  });
});

async function check(lock: Lock): Promise<{ code: number; output: string }> {
  const file = join(await temporaryDirectory(), 'package-lock.json');
  writeFileSync(file, JSON.stringify(lock));
  const script = join(packageRoot(), 'scripts', 'generate', 'complete-lock.mjs');
  return new Promise((resolve) => {
    execFile(process.execPath, [script, '--check', file], (error, stdout, stderr) => {
      resolve({ code: error ? Number(error.code) : 0, output: stdout + stderr });
    });
  });
}
