// One JSON merge patch from `--set name=value`, `--unset name` and `--merge json`.
import { invalidFields } from '../kernel/fields.ts';

export interface PatchSources {
  set: readonly string[];
  unset: readonly string[];
  merge?: string | undefined;
}

export function collectSettings(sources: PatchSources): Record<string, unknown> {
  const patch = sources.merge === undefined ? {} : parseObject(sources.merge);
  for (const assignment of sources.set) {
    const [name, value] = split(assignment);
    assign(patch, name, readValue(value));
  }
  for (const name of sources.unset) assign(patch, name, null);
  return patch;
}

function parseObject(text: string): Record<string, unknown> {
  try {
    const value: unknown = JSON.parse(text);
    if (typeof value === 'object' && value !== null && !Array.isArray(value)) return value as Record<string, unknown>;
  } catch {
    // Not JSON: refused below.
  }
  throw invalidFields([{ field: '--merge', message: 'must be a JSON object' }]);
}

function split(assignment: string): [string, string] {
  const at = assignment.indexOf('=');
  if (at < 1) throw invalidFields([{ field: '--set', message: `must look like name=value, not ${assignment}` }]);
  return [assignment.slice(0, at), assignment.slice(at + 1)];
}

/** Parsed if it is JSON, else the text itself: `5`, `["a"]`, `pause`. */
function readValue(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

function assign(patch: Record<string, unknown>, path: string, value: unknown): void {
  const steps = path.split('.');
  const last = steps.pop() as string;
  if (path.includes('__proto__')) throw invalidFields([{ field: path, message: 'is not a known field' }]);
  let place = patch;
  for (const step of steps) {
    const inner = place[step];
    const next = typeof inner === 'object' && inner !== null ? (inner as Record<string, unknown>) : {};
    place[step] = next;
    place = next;
  }
  place[last] = value;
}
