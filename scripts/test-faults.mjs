// `npm run test:faults`: the random tests, for as many minutes as LEASEHOLD_TEST_MINUTES says (1 by default).
import { spawnSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';

const bootstrap = fileURLToPath(new URL('bootstrap.mjs', import.meta.url));
const given = process.argv.slice(2);
const files =
  given.length > 0
    ? given
    : ['test/faults', 'test/integration/jobs/engine-model.test.ts', 'test/unit/jobs/claim/lease-protocol.test.ts'];
const env = { LEASEHOLD_TEST_MINUTES: '1', ...process.env };
const { status } = spawnSync(process.execPath, [bootstrap, 'test', ...files], { stdio: 'inherit', env });
process.exitCode = status ?? 1;
