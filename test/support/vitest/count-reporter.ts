// Begins a run with the seed of its order, and ends it with one line of counts, alone, for machines to read. With
// LEASEHOLD_TEST_DURATIONS=write it keeps how long the files took, for the order of later runs.
import { writeFileSync } from 'node:fs';
import type { Reporter, TestModule, Vitest } from 'vitest/node';
import { durationsFile } from './slow-first.ts';

// Shorter files fill the gaps in any order.
const minSeconds = 2;

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
    if (process.env.LEASEHOLD_TEST_DURATIONS === 'write') writeDurations(modules);
    // After the summaries of results and coverage, so that this line closes the output.
    process.once('exit', () => process.stdout.write(`\n${passed} passed, ${failed} failed\n`));
  }
}

function writeDurations(modules: ReadonlyArray<TestModule>): void {
  const seconds = modules
    .map((module) => [module.relativeModuleId, Math.round(module.diagnostic().duration / 1000)] as const)
    .filter(([, duration]) => duration >= minSeconds)
    .sort(([a], [b]) => (a < b ? -1 : 1));
  writeFileSync(durationsFile, `${JSON.stringify(Object.fromEntries(seconds), null, 2)}\n`);
}
