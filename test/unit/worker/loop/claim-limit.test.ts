// How much a daemon holds while others could run it: what it starts within a moment.
import { expect, test } from 'vitest';
import { ClaimLimit } from '../../../../server/worker/loop/claim-limit.ts';

/** A limit whose clock and event loop the test drives. */
function createLimit(hasPeers = true) {
  const state = { now: 0, busy: 0, hasPeers };
  const limit = new ClaimLimit({
    hasPeers: () => state.hasPeers,
    now: () => state.now,
    utilization: () => ({ idle: 0, active: 0, utilization: state.busy }),
  });
  return { limit, state };
}

/** Claims as much as is allowed and runs it, one job after the other; returns what is allowed after some rounds. */
function runRounds(jobMs: number, { idleMs = 0 } = {}): number {
  const { limit, state } = createLimit();
  let allowed = limit.get(0);
  for (let round = 0; round < 20; round++) {
    const claimedAt = state.now;
    for (let n = 0; n < allowed; n++) {
      limit.started(state.now - claimedAt);
      state.now += jobMs;
      limit.ended(jobMs);
    }
    state.busy = (allowed * jobMs) / (allowed * jobMs + idleMs);
    state.now += idleMs;
    allowed = limit.get(0);
  }
  return allowed;
}

test('without other daemons there is no limit', () => {
  const { limit, state } = createLimit(false);
  expect(limit.get(1000)).toBe(Number.POSITIVE_INFINITY);
  state.hasPeers = true;
  expect(limit.get(0)).toBeLessThan(10);
});

test('hundreds of jobs that wait for I/O may be held: the limit doubles while the event loop is idle', () => {
  const { limit, state } = createLimit();
  let held = 0;
  let steps = 0;
  for (; held < 200 && steps < 20; steps++) {
    state.now += 10;
    held = limit.get(held);
  }
  expect(held).toBeGreaterThanOrEqual(200);
  expect(steps).toBeLessThan(8);
});

test('a limit that is not reached does not grow', () => {
  const { limit, state } = createLimit();
  const first = limit.get(0);
  state.now += 1000;
  expect(limit.get(1)).toBe(first);
});

test.each([
  ['of 10 ms', 10, 8, 16],
  ['of 20 ms', 20, 4, 8],
  ['of a second', 1000, 1, 2],
  ['of a hundredth of a millisecond', 0.01, 6000, 6000],
])('jobs that compute %s: held jobs start within about 150 ms', (_what, jobMs, min, max) => {
  for (const allowed of [runRounds(jobMs), runRounds(jobMs, { idleMs: 200 })]) {
    expect(allowed).toBeGreaterThanOrEqual(min);
    expect(allowed).toBeLessThanOrEqual(max);
  }
});

test('jobs that compute after a wait are not held in larger numbers', () => {
  const { limit, state } = createLimit();
  for (let round = 0; round < 5; round++) {
    state.busy = 1;
    state.now += 100;
    for (let n = 0; n < 8; n++) limit.ended(100);
    expect(limit.get(0)).toBe(8);
  }
});

test('a daemon that was briefly slow holds fewer jobs, and later more again', () => {
  const { limit, state } = createLimit();
  limit.started(1000);
  state.now += 1000;
  expect(limit.get(0)).toBe(4);
  for (let n = 0; n < 4; n++) limit.ended(1);
  expect(limit.get(0)).toBe(8);
});
