// What a worker with durable calls must do beyond the other checks. The outside world gives every step a receipt of its own,
// so that the result tells a stored step from one that was made again.
import { type Check, leaseWrites } from './checks.ts';
import type { Exchange } from './proxy.ts';
import { maxWaitMs, type Stage } from './stage.ts';

const steps = ['step-1', 'step-2', 'step-3'];
// Too long to be slept through under the lease.
const sleepSeconds = 5;

export const durableChecks: readonly Check[] = [
  {
    name: 'wait',
    promise: 'makes each durable step once, waits without a lease, and goes on with what is stored',
    settings: { ttlSeconds: 30, concurrency: 1 },
    run: waitsWithoutLease,
  },
  {
    name: 'crash',
    promise: 'makes no stored step again after a crash between two steps; the step of the lost lease is refused',
    settings: { ttlSeconds: 3, concurrency: 1 },
    run: continuesAfterCrash,
  },
  {
    name: 'fence',
    promise: 'begins no further step once the server has refused one for its lost lease',
    settings: { ttlSeconds: 3, concurrency: 1 },
    run: stopsAfterRefusal,
  },
];

async function waitsWithoutLease(stage: Stage): Promise<void> {
  const jobId = await stage.submitSteps(steps.length, sleepSeconds);
  await finishes(stage, jobId);
  if (!(await stage.eventTypes(jobId)).some((type) => /^job\.waiting/.test(type)))
    throw stage.failed('the job slept under its lease instead of waiting without one');
  const [first] = leasesOf(stage, jobId);
  const ended = stage.proxy.find(/\/(sleep|suspend)$/).findLast((e) => e.path.includes(`/${first}/`));
  const after = leaseWrites(stage, jobId).filter((e) => e.path.includes(`/${first}/`) && e.path.endsWith('/release'));
  if (ended && after.some((e) => e.at > ended.at))
    throw stage.failed('the worker released a lease that the wait had ended');
  expectEffects(stage, jobId, { 'step-1': 1, 'step-2': 1, 'step-3': 1 });
  await expectLastReceipts(stage, jobId);
}

async function continuesAfterCrash(stage: Stage): Promise<void> {
  let lost: Exchange | undefined;
  stage.proxy.intercept = (exchange) => {
    if (lost !== undefined || !stores(exchange, 'step-2')) return undefined;
    lost = exchange;
    return 'silence';
  };
  const jobId = await stage.submitSteps(steps.length, sleepSeconds);
  await stage.until(
    () => lost !== undefined || stage.exit !== undefined,
    maxWaitMs,
    'no durable step step-2 was stored',
  );
  if (lost === undefined) throw stage.failed('no durable step step-2 was stored');
  await stage.restartWorker();
  await finishes(stage, jobId);
  if ((await stage.repeat(lost)) !== 409) throw stage.failed('the server took a step of a lease that was lost');
  // Made, but not stored before the crash: at least once.
  expectEffects(stage, jobId, { 'step-1': 1, 'step-2': 2, 'step-3': 1 });
  await expectLastReceipts(stage, jobId);
}

async function stopsAfterRefusal(stage: Stage): Promise<void> {
  let refused: Exchange | undefined;
  stage.proxy.intercept = (exchange) => {
    if (refused !== undefined || !stores(exchange, 'step-1')) return undefined;
    refused = exchange;
    return { status: 409, body: { code: 'LEASE_LOST', detail: 'The lease is EXPIRED.' } };
  };
  const jobId = await stage.submitSteps(steps.length, sleepSeconds);
  await finishes(stage, jobId);
  const leaseId = refused?.path.split('/').at(-2);
  if (stage.effects.of(jobId).some((trace) => trace.step !== 'step-1' && trace.leaseId === leaseId))
    throw stage.failed('the worker began another step after its lease was lost');
  expectEffects(stage, jobId, { 'step-1': 2, 'step-2': 1, 'step-3': 1 });
  await expectLastReceipts(stage, jobId);
}

function finishes(stage: Stage, jobId: string): Promise<void> {
  return stage.ended(jobId, ['DONE', 'FAILED', 'TIMEOUT'], maxWaitMs, 'the job with durable steps did not end');
}

function stores(exchange: Exchange, step: string): boolean {
  const stored = exchange.path.endsWith('/steps') ? exchange.body?.steps : undefined;
  return Array.isArray(stored) && stored.some((call) => call?.name === step);
}

function leasesOf(stage: Stage, jobId: string): string[] {
  const granted = stage.proxy.find(/\/lease\/request$/).filter((e) => e.body?.job_id === jobId && e.answer?.approved);
  return granted.map((exchange) => exchange.answer.lease.lease_id);
}

function expectEffects(stage: Stage, jobId: string, expected: Record<string, number>): void {
  const traces = stage.effects.of(jobId);
  for (const [step, times] of Object.entries(expected)) {
    const made = traces.filter((trace) => trace.step === step).length;
    if (made !== times) throw stage.failed(`the effect of ${step} was made ${made} times instead of ${times}`);
  }
}

/** The result has what the stored steps returned. */
async function expectLastReceipts(stage: Stage, jobId: string): Promise<void> {
  const traces = stage.effects.of(jobId);
  const expected = steps.map((step) => traces.findLast((trace) => trace.step === step)?.receipt);
  const { state } = await stage.read(jobId);
  if (state !== 'DONE') throw stage.failed(`the job with durable steps is ${state}`);
  if (JSON.stringify((await stage.result(jobId))?.receipts) !== JSON.stringify(expected))
    throw stage.failed('the result does not have the receipts of the stored steps');
}
