// `npm run test:faults -- --minutes N --seed S --scenario X`: the random tests for N minutes (1 by default), or one named
// scenario; `--scenario recovery --rounds N` measures recovery times. `--check DIRECTORY` checks the logs of an earlier run once more.
import { spawnSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    minutes: { type: 'string' },
    seed: { type: 'string' },
    scenario: { type: 'string' },
    rounds: { type: 'string' },
    check: { type: 'string' },
    /** Where the logs of the run are kept, also if it passes. */
    logs: { type: 'string' },
  },
});

const path = (name) => fileURLToPath(new URL(name, import.meta.url));
const env = { ...process.env };
if (values.seed !== undefined) env.LEASEHOLD_TEST_SEED = values.seed;
if (values.rounds !== undefined) env.LEASEHOLD_FAULTS_ROUNDS = values.rounds;
if (values.logs !== undefined) env.LEASEHOLD_FAULTS_DIRECTORY = values.logs;

if (values.check !== undefined) run(['--import', 'tsx', path('check-faults.ts'), values.check]);
else run([path('../bootstrap.mjs'), 'test', ...tests()]);

function tests() {
  if (values.scenario === undefined || values.scenario === 'mix') {
    env.LEASEHOLD_TEST_MINUTES = values.minutes ?? env.LEASEHOLD_TEST_MINUTES ?? '1';
    if (values.scenario === 'mix') return ['test/faults/mix.test.ts'];
    if (positionals.length > 0) return positionals;
    return [
      'test/faults',
      'test/integration/jobs/engine-model.test.ts',
      'test/unit/jobs/claim/lease-protocol.test.ts',
      'test/acceptance/conformance.test.ts',
    ];
  }
  env.LEASEHOLD_TEST_SCENARIO = values.scenario;
  if (values.scenario === 'recovery') return ['test/faults/recovery.test.ts'];
  return ['test/faults/scenarios.test.ts', '-t', values.scenario === 'all' ? '' : `^${values.scenario}:`];
}

function run(args) {
  process.exitCode = spawnSync(process.execPath, args, { stdio: 'inherit', env }).status ?? 1;
}
