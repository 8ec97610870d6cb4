// Courses of events that once broke a promise, each with real processes and connections:
// `npm run test:faults -- --scenario a1`. `npm test` covers them with the tests that docs/guarantees.md names.
import { test } from 'vitest';
import { useTenantPerTest } from '../support/postgres/database.ts';
import { createPrivateWorld, createSharedWorld } from './create-world.ts';
import { finishRun, runOptions } from './run.ts';
import { lostOutcome } from './scenarios/a1-lost-outcome.ts';
import { frozenInTransaction } from './scenarios/a2-locks-of-a-frozen-daemon.ts';
import { lateClaimAnswer } from './scenarios/a3-late-claim-answer.ts';
import { lateClaim } from './scenarios/a4-late-claim.ts';
import { assertAfterFreeze } from './scenarios/a5-assert-after-freeze.ts';
import { webhookTime } from './scenarios/a6-webhook-time.ts';
import { clockWentBack } from './scenarios/a7-clock-went-back.ts';
import { deafHandler } from './scenarios/a8-deaf-handler.ts';
import { failover } from './scenarios/a9-failover.ts';
import { stepAfterFreeze } from './scenarios/a10-step-after-freeze.ts';
import { powerLoss } from './scenarios/power-loss.ts';

const context = useTenantPerTest();
const { minutes, seed } = runOptions();
const isWanted = minutes > 0 || process.env.LEASEHOLD_TEST_SCENARIO !== undefined;
const scenarios = [
  lostOutcome,
  frozenInTransaction,
  lateClaimAnswer,
  lateClaim,
  assertAfterFreeze,
  webhookTime,
  clockWentBack,
  deafHandler,
  failover,
  stepAfterFreeze,
  powerLoss,
];

for (const { name, title, run, standby = false } of scenarios) {
  test.skipIf(!isWanted)(
    `${name}: ${title}`,
    async () => {
      const world = await (standby ? createPrivateWorld(seed) : createSharedWorld(context, seed));
      await run(world);
      await finishRun(world, { people: standby });
    },
    // Only a run that hangs reaches it: a lane of a hundred jobs ends one after the other, also on a busy machine.
    900_000,
  );
}
