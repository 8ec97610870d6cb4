// A guard, and how it is taken out.

export interface Guard {
  name: string;
  /** What it prevents. */
  prevents: string;
  file: string;
  /** Each `search` occurs exactly once. */
  edits: readonly { search: string; replace: string }[];
  /** Arguments for vitest: test files, or `-t` and a name. */
  tests: readonly string[];
  /** The scenario of the fault harness that fails without it. */
  scenario?: string;
}

/** The source without the guard. Throws if it no longer has it as the patch expects. */
export function withoutGuard({ name, file, edits }: Guard, source: string): string {
  let text = source;
  for (const { search, replace } of edits) {
    const count = text.split(search).length - 1;
    if (count !== 1) throw new Error(`guard "${name}": ${file} contains ${count} times: ${search}`);
    text = text.replace(search, () => replace);
  }
  return text;
}
