// Begins a run with the seed of its order, and ends it with one line of counts, alone, for machines to read.
import type { Reporter, TestModule, Vitest } from 'vitest/node';

export default class CountReporter implements Reporter {
  onInit(vitest: Vitest): void {
    console.log(`test order: LEASEHOLD_TEST_SEED=${vitest.config.sequence.seed}`);
  }

  async onTestRunEnd(modules: ReadonlyArray<TestModule>, errors: ReadonlyArray<unknown>): Promise<void> {
    let passed = 0;
    let failed = errors.length;
    for (const module of modules) {
      // A file that fails outside of its tests (an import, a hook, a leak) counts as one failure.
      if (module.errors().length > 0) failed++;
      for (const test of module.children.allTests()) {
        const { state } = test.result();
        if (state === 'passed') passed++;
        if (state === 'failed') failed++;
      }
    }
    // After the summaries of results and coverage, so that this line closes the output.
    process.once('exit', () => process.stdout.write(`\n${passed} passed, ${failed} failed\n`));
  }
}
