import { expect, test } from 'vitest';
import type { Job } from '../../../../server/jobs/model/job.ts';
import { decideOutcome } from '../../../../server/worker/attempt/decide-outcome.ts';

const job = { retry: null, attempt: 1, attemptFloor: 0, maxAttempts: 1 } as Job;

test('the error of a time limit names the step or phase that did not stop', () => {
  const afterLimit = (phase?: string) => decideOutcome(job, undefined, { kind: 'timedOut', afterSeconds: 2, phase }, 0);
  expect(afterLimit()).toMatchObject({
    kind: 'fail',
    error: { code: 'TIMEOUT', message: 'The attempt ran longer than 2 s.' },
  });
  expect(afterLimit('charge')).toMatchObject({
    kind: 'fail',
    error: { code: 'TIMEOUT', message: '"charge" ran longer than 2 s and did not stop.' },
  });
});
