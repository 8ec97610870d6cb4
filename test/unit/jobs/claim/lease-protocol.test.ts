// Every order of claims, starts, renewals, outcomes, sweeps, cancels, pauses and resumes, with messages that are lost, late
// or handled twice, and daemons that stand still: explored to the end. Each guard that is taken out must be missed.
import { describe, expect, test } from 'vitest';
import { explore } from '../../../support/model/explore.ts';
import { allGuards, type Bounds, type Guards, leaseProtocol } from '../../../support/model/lease-protocol.ts';

const maxStates = 400_000;
/** `npm run test:faults` explores more renewals, daemons and combinations, which multiply the states by ten. */
const isLong = process.env.LEASEHOLD_TEST_MINUTES !== undefined;
const renewals = isLong ? 1 : 0;

/** Two jobs of one lease, whose daemon may claim again after it lost them. */
const oneLease: Bounds = { daemons: 1, targets: [null, null], claims: 2, renewals, maxAttempts: 1, time: 3 };
/** Two daemons and a lane of two jobs. */
const oneLane: Bounds = { daemons: 2, targets: ['t', 't'], claims: 2, renewals, maxAttempts: 2, time: 3 };
/** Two daemons, a lane of two jobs, and a job beside it, so that a lease has two jobs of which one holds the lane. */
const laneAndJob: Bounds = { daemons: 2, targets: ['t', 't', null], claims: 2, renewals: 0, maxAttempts: 1, time: 3 };
/** A message that the database gets twice. */
const copied: Bounds = {
  daemons: isLong ? 2 : 1,
  targets: [null],
  claims: 2,
  renewals: 1,
  maxAttempts: 2,
  copies: 1,
  time: 3,
};
/** A cancel at any moment. */
const canceled: Bounds = { daemons: 1, targets: [null], claims: 2, renewals: 1, maxAttempts: 2, cancels: 1, time: 3 };
/** A pause at any moment, and a resume at any moment after it or after an error. */
const paused: Bounds = { ...canceled, cancels: 0, pauses: 1, resumes: 1 };
/** Both at once. */
const pausedAndCanceled: Bounds = { ...canceled, renewals: 0, pauses: 1, resumes: 1 };
/** The same with a second daemon that may claim the job meanwhile. */
const twoDaemonsCanceled: Bounds = { ...canceled, daemons: 2 };
/** Two daemons, a lane of two jobs, and a cancel. */
const laneCanceled: Bounds = { ...oneLane, renewals: 0, maxAttempts: 1, cancels: 1 };
/** Two daemons, a lane of two jobs, a pause and a resume. */
const lanePaused: Bounds = { ...laneCanceled, cancels: 0, pauses: 1, resumes: 1 };
/** Two daemons, a lane of two jobs, and a message that the database gets twice. */
const laneCopied: Bounds = { ...oneLane, renewals: 0, copies: 1 };

describe('with every guard no property is violated', () => {
  test.each([
    ['two jobs of one lease', oneLease],
    ['two daemons and a lane', oneLane],
    ['two daemons, a lane and a job beside it', laneAndJob],
    ['a message that is handled twice', copied],
    ['a cancel at any moment', canceled],
    ['a pause and a resume at any moment', paused],
    ['a pause, a resume and a cancel', pausedAndCanceled],
    ...(isLong
      ? ([
          ['two daemons and a cancel', twoDaemonsCanceled],
          ['two daemons, a lane and a cancel', laneCanceled],
          ['two daemons, a lane, a pause and a resume', lanePaused],
          ['two daemons, a lane and a message that is handled twice', laneCopied],
        ] satisfies [string, Bounds][])
      : []),
  ])('%s', (_, bounds) => {
    const { violation, complete, states, steps } = explore(leaseProtocol(bounds, allGuards), maxStates);
    console.log(`explored ${states} states, ${steps} steps`);
    expect(violation).toBeUndefined();
    expect(complete).toBe(true);
  });
});

describe('without a guard a violation is found', () => {
  test.each<[keyof Guards, string, Bounds, string]>([
    ['leaseEndsWithItsJobs', 'two jobs of one lease', oneLease, 'is RUNNING and its lease is not active'],
    ['trustBeforeStart', 'two jobs of one lease', oneLease, 'starts on a lease that is over'],
    ['releaseReservesLease', 'two jobs of one lease', oneLease, 'failed without having run'],
    ['fence', 'a lane', oneLane, 'starts on a lease that is over'],
    ['headsOnly', 'a lane', oneLane, 'two handlers run at once'],
    ['sweepHonoursStop', 'a cancel', canceled, 'after a cancel'],
    ['sweepHonoursStop', 'a pause', paused, 'after a pause'],
    ['status', 'a copy', copied, 'complete is not allowed from'],
    ['requeueFence', 'a copy', copied, 'starts on a lease that is over'],
  ])('%s: %s', (guard, _, bounds, what) => {
    const { violation } = explore(leaseProtocol(bounds, { ...allGuards, [guard]: false }), maxStates);
    expect(violation?.what).toContain(what);
    expect(violation?.path.length).toBeGreaterThan(0);
  });
});
