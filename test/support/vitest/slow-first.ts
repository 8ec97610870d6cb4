// The order of the files: first those that start processes, browsers and servers, because they take longest and one of
// them at the end would leave the other workers idle. The rest by size, as vitest does without times of an earlier run.
import { BaseSequencer, type TestSpecification } from 'vitest/node';

const long = /\/test\/(acceptance|browser|faults|integration\/(embedded-postgres|deployment))\//;

export class SlowFirst extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    const sorted = await super.sort(files);
    const isLong = ({ moduleId }: TestSpecification) => long.test(moduleId);
    return [...sorted.filter(isLong), ...sorted.filter((file) => !isLong(file))];
  }
}
