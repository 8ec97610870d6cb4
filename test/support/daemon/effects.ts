// The effects log of handlers in daemons of a test: a proof that does not ask the database.
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect } from 'vitest';
import { type Effect, findOverlaps } from '../model/effects.ts';
import { temporaryDirectory } from '../temporary.ts';

export interface EffectsLog {
  /** For the daemons' environment. */
  env: { EFFECTS_FILE: string };
  read(): Effect[];
  /** A file for handlers that wait: they go on when `release` makes it. */
  gate(name: string): { path: string; release(): void };
}

export async function useEffects(): Promise<EffectsLog> {
  const directory = await temporaryDirectory('effects');
  const file = join(directory, 'effects');
  writeFileSync(file, '');
  return {
    env: { EFFECTS_FILE: file },
    read: () => readEffects(file),
    gate: (name) => {
      const path = join(directory, name);
      return { path, release: () => writeFileSync(path, '') };
    },
  };
}

function readEffects(file: string): Effect[] {
  const lines = readFileSync(file, 'utf8').split('\n').filter(Boolean);
  return lines.map((line) => JSON.parse(line) as Effect);
}

export function checkEffects(effects: Effect[]): void {
  expect(findOverlaps(effects).map(({ text }) => text)).toEqual([]);
}
