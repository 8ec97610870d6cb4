// Every order of claims, starts, renewals, outcomes, sweeps and cancels, with messages that are lost or late and
// daemons that stand still: explored to the end. Each guard that is taken out must be missed.
import { describe, expect, test } from 'vitest';
import { explore } from '../../../support/model/explore.ts';
import { allGuards, type Bounds, type Guards, leaseProtocol } from '../../../support/model/lease-protocol.ts';

const maxStates = 400_000;
/** `npm run test:faults` explores renewals too, which multiply the states by ten. */
const renewals = process.env.LEASEHOLD_TEST_MINUTES === undefined ? 0 : 1;

/** Two jobs of one lease, whose daemon may claim again after it lost them. */
const oneLease: Bounds = {
  daemons: 1,
  targets: [null, null],
  claims: 2,
  renewals,
  maxAttempts: 1,
  cancels: 0,
  time: 3,
};
/** Two daemons and a lane of two jobs. */
const oneLane: Bounds = { daemons: 2, targets: ['t', 't'], claims: 2, renewals, maxAttempts: 2, cancels: 0, time: 3 };
/** A cancel at any moment. */
const canceled: Bounds = { daemons: 1, targets: [null], claims: 2, renewals: 1, maxAttempts: 2, cancels: 1, time: 3 };

describe('with every guard no property is violated', () => {
  test.each([
    ['two jobs of one lease', oneLease],
    ['two daemons and a lane', oneLane],
    ['a cancel at any moment', canceled],
  ])('%s', (_, bounds) => {
    const { violation, complete, states, steps } = explore(leaseProtocol(bounds, allGuards), maxStates);
    console.log(`explored ${states} states, ${steps} steps`);
    expect(violation).toBeUndefined();
    expect(complete).toBe(true);
  });
});

describe('without a guard a violation is found', () => {
  test.each<[keyof Guards, Bounds, string]>([
    ['leaseEndsWithItsJobs', oneLease, 'is RUNNING and its lease is not active'],
    ['trustBeforeStart', oneLease, 'starts on a lease that is over'],
    ['releaseReservesLease', oneLease, 'failed without having run'],
    ['fence', oneLane, 'starts on a lease that is over'],
    ['headsOnly', oneLane, 'two handlers run at once'],
    ['sweepHonoursCancel', canceled, 'of a canceled job'],
  ])('%s', (guard, bounds, what) => {
    const { violation } = explore(leaseProtocol(bounds, { ...allGuards, [guard]: false }), maxStates);
    expect(violation?.what).toContain(what);
    expect(violation?.path.length).toBeGreaterThan(0);
  });
});
