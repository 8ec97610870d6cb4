import { expect, test } from 'vitest';
import { statuses } from '../../../server/jobs/model/states.ts';
import { never } from '../../../server/jobs/model/waiting.ts';
import {
  eventName,
  jobStates,
  type SchedulerJob,
  statusesOf,
  toJobIntent,
  toJobResult,
  toState,
} from '../../../server/scheduler/api-names.ts';

const job = (given: Partial<SchedulerJob>): SchedulerJob =>
  ({
    status: 'QUEUED',
    error: null,
    finishedAt: null,
    progress: null,
    progressMessage: null,
    ...given,
  }) as SchedulerJob;

test.each([
  ['PENDING', 'QUEUED'],
  ['QUEUED', 'QUEUED'],
  ['PAUSED', 'QUEUED'],
  ['CLAIMED', 'CLAIMED'],
  ['PREPARING', 'PREPARING'],
  ['LEASE_PENDING', 'LEASE_PENDING'],
  ['RUNNING', 'RUNNING'],
  ['SUCCESS', 'DONE'],
  ['PARTIAL', 'DONE'],
  ['ERROR', 'FAILED'],
  ['CANCELED', 'CANCELED'],
] as const)('%s is shown as %s', (status, state) => {
  expect(toState(job({ status }))).toBe(state);
  expect(statusesOf(state)).toContain(status);
});

test.each(['LEASE_EXPIRED', 'TIMEOUT'])('a failure by %s is a TIMEOUT', (code) => {
  const failed = job({ status: 'ERROR', error: { code, message: '' }, finishedAt: 'now' });
  expect(toState(failed)).toBe('TIMEOUT');
  expect(toJobResult(failed)?.status).toBe('TIMEOUT');
  expect(eventName('job.failed', { error: { code } })).toBe('JOB_TIMEOUT');
});

test('every state covers some status, and every status has a state', () => {
  const covered = new Set(jobStates.flatMap(statusesOf));
  expect([...covered].sort()).toEqual([...statuses].sort());
});

test('a claim is not a lease, and a job that waits again has neither', () => {
  const claim = job({ status: 'CLAIMED', leaseId: 'c', leaseOwner: 'w', leaseKind: 'claim', leaseExpiresAt: 'then' });
  expect(toJobIntent(claim)).toMatchObject({ lease_id: null, claimed_by: 'w', claim_expires_at: 'then' });
  const again = job({
    status: 'PENDING',
    leaseId: 'l',
    leaseHolder: 'w',
    leaseKind: 'remote',
    runAt: 'later',
    waitsForRetry: true,
  });
  expect(toJobIntent(again)).toMatchObject({ lease_id: null, claimed_by: null, next_retry_at: 'later' });
  const after = job({ status: 'WAITING', waiting: { kind: 'after', jobs: 1 }, runAt: never, waitsForRetry: true });
  expect(toJobIntent(after).next_retry_at).toBeNull();
  const done = job({ status: 'SUCCESS', leaseId: 'l', leaseHolder: 'w', leaseKind: 'remote', finishedAt: 'now' });
  expect(toJobIntent(done)).toMatchObject({ lease_id: 'l', claimed_by: 'w' });
});

test('the note of a paused job says so', () => {
  const paused = job({ status: 'PAUSED', error: { code: 'PAUSED', message: 'Job was interrupted by user' } });
  expect(toJobIntent(paused)).toMatchObject({ state: 'QUEUED', note: expect.stringContaining('interrupted by user') });
  expect(toJobResult(paused)).toBeNull();
});
