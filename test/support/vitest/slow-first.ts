// The order of the files: the longest first, because one of them at the end would leave the other workers idle. How long
// they take is kept in test/durations.json, from a run with LEASEHOLD_TEST_DURATIONS=write; files that it does not name
// are short or new, and follow by size, as vitest does without times of an earlier run.
import { readFileSync } from 'node:fs';
import { relative } from 'node:path';
import { fileURLToPath } from 'node:url';
import { BaseSequencer, type TestSpecification } from 'vitest/node';

const root = fileURLToPath(new URL('../../../', import.meta.url));
export const durationsFile = fileURLToPath(new URL('../../durations.json', import.meta.url));

export class SlowFirst extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    const seconds: Record<string, number> = JSON.parse(readFileSync(durationsFile, 'utf8'));
    const of = ({ moduleId }: TestSpecification) => seconds[relative(root, moduleId).replaceAll('\\', '/')] ?? 0;
    // Stable: those of the same time stay in the order of their size.
    return (await super.sort(files)).sort((a, b) => of(b) - of(a));
  }
}
