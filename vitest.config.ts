import { defineConfig } from 'vitest/config';

export default defineConfig({
  test: {
    include: ['test/**/*.test.ts'],
    pool: 'forks',
    // One database server for the whole run; every file gets a database of its own in it.
    globalSetup: ['test/support/vitest/global-setup.ts'],
    setupFiles: ['test/support/vitest/leaks.ts'],
    // The smallest machines of CI have two cores, and each worker brings Postgres backends along.
    // Many tests wait for processes, leases and signals more than they compute.
    maxWorkers: 3,
    testTimeout: 30_000,
    hookTimeout: 60_000,
    teardownTimeout: 30_000,
    reporters: ['default', './test/support/vitest/count-reporter.ts'],
  },
});
