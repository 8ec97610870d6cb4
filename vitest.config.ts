import { fileURLToPath } from 'node:url';
import { defineConfig } from 'vitest/config';
import { SlowFirst } from './test/support/vitest/slow-first.ts';

// Printed by the reporter; LEASEHOLD_TEST_SEED repeats the order of a run.
const seed = Number(process.env.LEASEHOLD_TEST_SEED ?? Date.now() % 2 ** 31);

const source = (path: string) => fileURLToPath(new URL(`server/${path}/index.ts`, import.meta.url));

export default defineConfig({
  // The package's own name, in docs/examples: its sources, as in tsconfig.json.
  resolve: {
    alias: [
      { find: /^leasehold$/, replacement: source('.') },
      { find: /^leasehold\/client$/, replacement: source('client') },
    ],
  },
  test: {
    include: ['test/**/*.test.ts'],
    pool: 'forks',
    // A process runs many files and imports the server once. The modules of the server keep no state of a daemon or a tenant.
    isolate: false,
    // One database server for the whole run; every file gets a database of its own in it.
    globalSetup: ['test/support/vitest/global-setup.ts'],
    setupFiles: ['test/support/vitest/leaks.ts'],
    // The smallest machines of CI have two cores, and each worker brings Postgres backends along.
    // Many tests wait for processes, leases and signals more than they compute: four workers leave a third of it idle.
    maxWorkers: 6,
    // Limits for tests that hang. A machine that is busy with other work must not reach them.
    testTimeout: 240_000,
    hookTimeout: 240_000,
    teardownTimeout: 60_000,
    // The tests of a file run in random order; files keep theirs.
    sequence: { shuffle: { files: false, tests: true }, seed, sequencer: SlowFirst },
    reporters: ['default', './test/support/vitest/count-reporter.ts'],
    coverage: {
      provider: 'v8',
      include: ['server/**/*.ts'],
      // Run by browsers, worker threads and child processes only, where V8 does not count for us.
      exclude: [
        'server/dashboard/**',
        'server/main.ts',
        'server/cli/main.ts',
        'server/**/*-thread.ts',
        'server/**/tables/*.ts',
      ],
      reporter: ['text-summary', 'json-summary', 'html'],
      reportsDirectory: 'coverage',
      thresholds: { lines: 92 },
    },
  },
});
