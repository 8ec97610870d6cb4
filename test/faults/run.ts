// The course of a run: faults under load, then none, then everything drains, and the checker reads the logs.
import { expect } from 'vitest';
import { heldStatuses, terminalStatuses } from '../../server/jobs/model/states.ts';
import { eventually } from '../support/eventually.ts';
import { checkRun } from './check/check-run.ts';
import { describeViolation } from './check/violation.ts';
import { type Fault, faults } from './faults.ts';
import { cancelInBulk, cancelLeftBatches } from './load/bulk.ts';
import { actLikePeople, enqueueLoad, releaseHolds } from './load/load.ts';
import { changeResources } from './load/resources.ts';
import { stopTicks } from './load/ticks.ts';
import { answerQuestions, sendMissingEvents } from './load/waits.ts';
import { Progress, stalledMs, type UnfinishedJob } from './progress.ts';
import { machineMs } from './run-log.ts';
import { isUnsent, takeSnapshot } from './snapshot.ts';
import type { World } from './world.ts';

/** Minutes and seed of the run, as the command line or the environment gives them. */
export function runOptions(): { minutes: number; seed: number } {
  const minutes = Number(process.env.LEASEHOLD_TEST_MINUTES ?? 0);
  const seed = Number(process.env.LEASEHOLD_TEST_SEED ?? Date.now() % 2 ** 31);
  return { minutes, seed };
}

export async function runMix(world: World, ms: number): Promise<void> {
  const until = performance.now() + ms;
  const isOn = () => performance.now() < until;
  const usable = faults.filter(({ needsServer }) => !needsServer || world.hasServers);
  const injectFaults = async () => {
    while (isOn()) {
      await inject(world, world.choices.pick(usable));
      await world.pause(world.choices.between(100, 1_000));
    }
  };
  const load = [enqueueLoad, actLikePeople, changeResources, cancelInBulk].map((part) => part(world, isOn));
  await Promise.all([...load, injectFaults()]);
}

async function inject(world: World, fault: Fault): Promise<void> {
  try {
    await fault.inject(world);
  } catch (error) {
    // E.g. a daemon that does not get ready while its server restarts. It is started again at the end.
    world.note(`${fault.name} failed`, { error: String(error) });
  }
}

/**
 * Takes all faults back, waits until all work has ended, and checks the run. Without `people` nobody releases what is
 * held: nothing should be.
 */
export async function finishRun(world: World, { people = true } = {}): Promise<void> {
  await world.heal();
  const healedAt = machineMs();
  for (const daemon of world.daemons) {
    if (daemon.process.child.exitCode !== null || daemon.process.child.signalCode !== null) await daemon.launch();
    await daemon.process.ready();
  }
  await stopTicks(world);
  await drain(world, people)
    // The checker names the jobs that are left.
    .catch((error) => world.note('not drained', { error: String(error) }));
  world.note('drained', { ms: machineMs() - healedAt });
  await takeSnapshot(world);
  for (const daemon of world.daemons) daemon.mayEnd();
  expect(checkRun(world.log.directory).map(describeViolation)).toEqual([]);
}

/** How long it takes depends on the work that is left and on the machine; that everything moves does not. */
async function drain(world: World, people: boolean): Promise<void> {
  const jobs = new Progress();
  for (let left = await unfinishedJobs(world, people); left.length > 0; left = await unfinishedJobs(world, people)) {
    jobs.check(left);
    if (people) {
      await releaseHolds(world);
      await answerQuestions(world);
      await sendMissingEvents(world);
      await cancelLeftBatches(world);
    }
    await world.pause(300);
  }
  await eventually(
    async () => {
      for (const { schema } of world.tenants) {
        const unsent = `select 1 from ${schema}.webhook_deliveries d where ${isUnsent(schema)} limit 1`;
        if ((await world.context.db.query(unsent)).length > 0) throw new Error('webhooks are left');
        const running = `select 1 from ${schema}.operations where status = 'running' limit 1`;
        if ((await world.context.db.query(running)).length > 0) throw new Error('operations are left');
      }
    },
    { timeoutMs: stalledMs, everyMs: 300 },
  );
}

async function unfinishedJobs(world: World, people: boolean): Promise<UnfinishedJob[]> {
  const final = [...terminalStatuses, ...(people ? [] : heldStatuses)].map((status) => `'${status}'`).join(', ');
  const left = world.tenants.map(({ schema }) =>
    world.context.db.query<UnfinishedJob>(
      `select id, concat_ws(' ', status, attempt, updated_at) as state,
              status not in ('PENDING', 'WAITING') and not gated and (lane_head or target_id is null) as "isFirst"
         from ${schema}.jobs where status not in (${final})`,
    ),
  );
  return (await Promise.all(left)).flat();
}
