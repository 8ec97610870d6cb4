// What handlers did to the world, from the file they wrote it to: the proof that does not ask the database.
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect } from 'vitest';
import { temporaryDirectory } from '../temporary.ts';

export interface Effect {
  kind: 'begin' | 'step' | 'end';
  target: string | null;
  job: string;
  attempt: number;
  lease: string;
  /** The daemon's process. */
  pid: number;
}

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

/** I1 in the world: once an attempt of a target has begun, none of the earlier ones does anything more. */
export function checkEffects(effects: Effect[]): void {
  const running = new Map<string, Effect>();
  const over = new Set<string>();
  const overlaps: string[] = [];
  for (const effect of effects) {
    const lane = effect.target ?? effect.job;
    const attempt = `${effect.job}:${effect.lease}`;
    if (over.has(attempt)) overlaps.push(`${effect.kind} of ${attempt} after another attempt of ${lane} had begun`);
    const before = running.get(lane);
    if (effect.kind === 'begin') {
      if (before) over.add(`${before.job}:${before.lease}`);
      running.set(lane, effect);
    }
    if (effect.kind === 'end') {
      over.add(attempt);
      running.delete(lane);
    }
  }
  expect(overlaps).toEqual([]);
}
