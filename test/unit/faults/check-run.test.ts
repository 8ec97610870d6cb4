// The offline checker finds each kind of violation in the logs of a run, and names the line.
import { expect, test } from 'vitest';
import { checkRun } from '../../faults/check/check-run.ts';
import { describeViolation } from '../../faults/check/violation.ts';
import { RunLog } from '../../faults/run-log.ts';
import { temporaryDirectory } from '../../support/temporary.ts';

type Records = Record<string, object[]>;

const begin = { kind: 'begin', target: 'lane', job: 'j1', attempt: 1, lease: 'l1', fence: 'f', pid: 1, at: 20 };
const event = {
  job_id: 'j1',
  target_id: 'lane',
  actor: 'worker:one',
  attempt: 1,
  data: null,
  present: 'SUCCESS',
  present_attempt: 1,
};

/** One job that was enqueued, ran and was completed by a daemon that was then stopped. */
const good: Records = {
  'tenants.jsonl': [{ slug: 'acme', followed: true }],
  'daemons.jsonl': [
    { name: 'one', event: 'started', at: 1, time: 1001 },
    { name: 'one', event: 'exited', at: 90, time: 1090, code: 0, expected: true },
  ],
  'operations.jsonl': [
    { name: 'enqueue', tenant: 'acme', daemon: 'one', startedAt: 5, endedAt: 9, outcome: 'ok', job: 'j1', key: 'k1' },
  ],
  'effects.jsonl': [begin, { ...begin, kind: 'end', at: 30 }],
  'jobs-0.jsonl': [{ id: 'j1', type: 'work', status: 'SUCCESS', target_id: 'lane', client_request_id: 'k1' }],
  'events-0.jsonl': [
    {
      ...event,
      seq: '1',
      type: 'job.enqueued',
      from_status: null,
      to_status: 'QUEUED',
      attempt: 0,
      lease_id: null,
      time: 1008,
    },
    {
      ...event,
      seq: '2',
      type: 'job.started',
      from_status: 'QUEUED',
      to_status: 'RUNNING',
      lease_id: 'l1',
      time: 1015,
    },
    {
      ...event,
      seq: '3',
      type: 'job.completed',
      from_status: 'RUNNING',
      to_status: 'SUCCESS',
      lease_id: 'l1',
      time: 1035,
    },
  ],
  'stream-0.jsonl': [
    { event: 'job:enqueued', seq: '1', job: 'j1', target: 'lane', from: null, to: 'QUEUED' },
    { event: 'job:started', seq: '2', job: 'j1', target: 'lane', from: 'QUEUED', to: 'RUNNING' },
    { event: 'job:completed', seq: '3', job: 'j1', target: 'lane', from: 'RUNNING', to: 'SUCCESS' },
  ],
  'metrics.jsonl': [{ name: 'one', poolWaiters: 0, residentBytes: 1e8 }],
};

async function check(changes: Records): Promise<string[]> {
  const log = new RunLog(await temporaryDirectory('check'));
  for (const [file, records] of Object.entries({ ...good, ...changes })) log.write(file, records);
  return checkRun(log.directory).map(describeViolation);
}

const [enqueued, started, completed] = good['events-0.jsonl'] as [object, object, object];
const [enqueue] = good['operations.jsonl'] as [object];
const [job] = good['jobs-0.jsonl'] as [object];
const [sent, sentStart, sentEnd] = good['stream-0.jsonl'] as [object, object, object];
const expired = { error: { code: 'LEASE_EXPIRED' } };
const failed = { ...completed, type: 'job.failed', to_status: 'ERROR', data: expired, present: 'ERROR' };

test('a run without violations passes', async () => {
  expect(await check({})).toEqual([]);
});

/** The handler began at that time, the cancel or pause was acknowledged at 12. */
function stoppedWhileRunning(name: 'cancel' | 'pause', at: number): Records {
  const requested = { ...started, seq: '3', type: `job.${name}_requested`, from_status: 'RUNNING', time: 1_017 };
  const end = { ...completed, seq: '4', time: 3_000 };
  return {
    'operations.jsonl': [enqueue, { ...enqueue, name, key: undefined, startedAt: 10, endedAt: 12 }],
    'effects.jsonl': [
      { ...begin, at },
      // After a wait of the same attempt.
      { ...begin, at: at + 1_500 },
      { ...begin, kind: 'end', at: at + 1_501 },
    ],
    'events-0.jsonl': [enqueued, started, requested, end],
    'stream-0.jsonl': [
      sent,
      sentStart,
      { ...sentStart, event: `job:${name}:requested`, seq: '3' },
      { ...sentEnd, seq: '4' },
    ],
  };
}

test.each(['cancel', 'pause'] as const)(
  'a handler may begin within a second after the %s of a job that was RUNNING',
  async (name) => {
    expect(await check(stoppedWhileRunning(name, 1_012))).toEqual([]);
  },
);

/** The job was paused at 10 to 12, before it began at 20; these came later. */
const pausedThen = (...more: object[]): Records => ({
  'operations.jsonl': [enqueue, { ...enqueue, name: 'pause', key: undefined, startedAt: 10, endedAt: 12 }, ...more],
  'events-0.jsonl': [
    enqueued,
    { ...enqueued, seq: '2', type: 'job.paused', from_status: 'QUEUED', to_status: 'PAUSED', time: 1_011 },
    { ...enqueued, seq: '3', type: 'job.resumed', from_status: 'PAUSED', to_status: 'QUEUED', time: 1_014 },
    { ...started, seq: '4' },
    { ...completed, seq: '5' },
  ],
  'stream-0.jsonl': [
    sent,
    { event: 'job:paused', seq: '2', job: 'j1', target: 'lane', from: 'QUEUED', to: 'PAUSED' },
    { event: 'job:resumed', seq: '3', job: 'j1', target: 'lane', from: 'PAUSED', to: 'QUEUED' },
    { ...sentStart, seq: '4' },
    { ...sentEnd, seq: '5' },
  ],
});
const resumed = { ...enqueue, name: 'resume', key: undefined, startedAt: 13, endedAt: 14 };

test('a handler may begin after a pause that a resume may have ended', async () => {
  expect(await check(pausedThen(resumed))).toEqual([]);
  expect(await check(pausedThen({ ...resumed, outcome: 'unknown' }))).toEqual([]);
  // At the same time as the pause, so that either may have come first.
  expect(await check(pausedThen({ ...resumed, startedAt: 11 }))).toEqual([]);
});

const other = { ...begin, job: 'j2', lease: 'l2', at: 25 };
const cases: [found: string, changes: Records][] = [
  [
    'I1 end of j1:l1 after another attempt of lane had begun (effects.jsonl:3)',
    {
      'effects.jsonl': [
        begin,
        { ...begin, lease: 'l2', at: 25 },
        { ...begin, kind: 'end', at: 30 },
        { ...other, job: 'j1', kind: 'end' },
      ],
    },
  ],
  [
    'I3 job j9 was acknowledged and is gone (operations.jsonl:2)',
    { 'operations.jsonl': [enqueue, { ...enqueue, job: 'j9', key: 'k9' }] },
  ],
  ['I4 job j1 is completed, and no handler ended under lease l1 (events-0.jsonl:3)', { 'effects.jsonl': [begin] }],
  [
    'I4 job j1 began under lease l1, which was over (events-0.jsonl:3) (effects.jsonl:1)',
    {
      'effects.jsonl': [{ ...begin, at: 40 }],
      'events-0.jsonl': [enqueued, started, failed].map((one) => ({ ...one, present: 'ERROR' })),
      'jobs-0.jsonl': [{ ...job, status: 'ERROR' }],
    },
  ],
  [
    'I5 2 terminal events of a job that is SUCCESS: j1 (events-0.jsonl:4)',
    {
      'events-0.jsonl': [
        enqueued,
        started,
        completed,
        { ...completed, seq: '4', type: 'job.resolved', from_status: 'ERROR' },
      ],
      'stream-0.jsonl': [sent, sentStart, sentEnd, { ...sentEnd, seq: '4' }],
    },
  ],
  [
    'I6 job j1 failed with LEASE_EXPIRED under l1 of one, which lives and never began it (events-0.jsonl:3)',
    {
      'effects.jsonl': [],
      'daemons.jsonl': [{ name: 'one', event: 'started', at: 1, time: 1001 }],
      'events-0.jsonl': [enqueued, started, failed].map((one) => ({ ...one, present: 'ERROR' })),
      'jobs-0.jsonl': [{ ...job, status: 'ERROR' }],
    },
  ],
  [
    'I7 job j1 began 8 ms after its cancel was acknowledged (operations.jsonl:2) (effects.jsonl:1)',
    { 'operations.jsonl': [enqueue, { ...enqueue, name: 'cancel', key: undefined, startedAt: 10, endedAt: 12 }] },
  ],
  ['I7 job j1 began 8 ms after its pause was acknowledged (operations.jsonl:2) (effects.jsonl:1)', pausedThen()],
  [
    'I7 job j1 began 8 ms after its pause was acknowledged (operations.jsonl:2) (effects.jsonl:1)',
    pausedThen({ ...resumed, outcome: 'failed' }),
  ],
  [
    'I7 job j1 began 8 ms after its pause was acknowledged (operations.jsonl:2) (effects.jsonl:1)',
    pausedThen({ ...resumed, startedAt: 21, endedAt: 22 }, { ...resumed, startedAt: 8, endedAt: 9.5 }),
  ],
  [
    'I7 job j1 began 1008 ms after its pause was acknowledged (operations.jsonl:2) (effects.jsonl:1)',
    stoppedWhileRunning('pause', 1_020),
  ],
  [
    'I7 job j1 began 1008 ms after its cancel was acknowledged (operations.jsonl:2) (effects.jsonl:1)',
    stoppedWhileRunning('cancel', 1_020),
  ],
  [
    'I8 key k1 was answered with job j2, before with j1 (operations.jsonl:1) (operations.jsonl:2)',
    {
      'operations.jsonl': [enqueue, { ...enqueue, job: 'j2' }],
      'jobs-0.jsonl': [job, { ...job, id: 'j2', client_request_id: null }],
    },
  ],
  [
    'I8 step first of job j1 ran in attempt 2, its result was stored in 1 (effects.jsonl:2)',
    {
      'effects.jsonl': [
        begin,
        { ...begin, kind: 'step', step: 'first', attempt: 2 },
        { ...begin, kind: 'end', at: 30 },
      ],
      'events-0.jsonl': [
        enqueued,
        started,
        { ...started, seq: '4', type: 'job.step_completed', from_status: 'RUNNING', data: { step: 'first' } },
        completed,
      ],
      'stream-0.jsonl': [sent, sentStart, { ...sentStart, seq: '4', from: 'RUNNING' }, { ...sentEnd, seq: '5' }],
    },
  ],
  [
    'I9 tenant acme read job j7 of another tenant (operations.jsonl:2)',
    {
      'operations.jsonl': [enqueue, { ...enqueue, name: 'foreignRead', job: 'j7', key: undefined }],
    },
  ],
  [
    'I9 event 9 is of job j7, which this tenant does not have (stream-0.jsonl:4)',
    {
      'stream-0.jsonl': [sent, sentStart, sentEnd, { ...sentEnd, seq: '9', job: 'j7' }],
    },
  ],
  [
    'I10 job j1 was acknowledged (operations.jsonl:1), and is QUEUED although no fault is left (jobs-0.jsonl:1)',
    {
      'jobs-0.jsonl': [{ ...job, status: 'QUEUED' }],
    },
  ],
  [
    'I11 event 2 (job.started of j1) never came in the stream (events-0.jsonl:2)',
    { 'stream-0.jsonl': [sent, sentEnd] },
  ],
  [
    'I11 event 2 of j1 came after 3 (stream-0.jsonl:2) (stream-0.jsonl:3)',
    { 'stream-0.jsonl': [sent, sentEnd, sentStart] },
  ],
  ['I11 event 1 was sent twice (stream-0.jsonl:2)', { 'stream-0.jsonl': [sent, sent, sentStart, sentEnd] }],
  [
    'I12 one ended by itself with 1 (daemons.jsonl:1)',
    { 'daemons.jsonl': [{ name: 'one', event: 'exited', at: 1, time: 2, code: 1, signal: null }] },
  ],
  [
    'I12 one has 3 waiters for connections (metrics.jsonl:1)',
    { 'metrics.jsonl': [{ name: 'one', poolWaiters: 3, residentBytes: 1 }] },
  ],
  [
    'I3 {"msg":"jobs had no active lease; their leases were reopened"} (output-one.jsonl:1)',
    { 'output-one.jsonl': [{ line: '{"msg":"jobs had no active lease; their leases were reopened"}' }] },
  ],
  [
    'job_lease j1: RUNNING without a lease (verify.jsonl:1)',
    { 'verify.jsonl': [{ tenant: 'acme', text: 'job_lease j1: RUNNING without a lease' }] },
  ],
];

test.each(cases)('%s', async (found, changes) => {
  expect(await check(changes)).toContain(found);
});
