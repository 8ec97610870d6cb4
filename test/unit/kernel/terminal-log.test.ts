import { expect, test } from 'vitest';
import { explainDrain } from '../../../server/daemon/run-daemon.ts';
import { toTerminalText } from '../../../server/kernel/logger.ts';

const line = (fields: object) =>
  JSON.stringify({ level: 30, time: '2030-01-31T08:00:00.000Z', worker: 'w', ...fields });

test('a log line on a terminal has time, level, message and fields', () => {
  const text = toTerminalText(line({ tenants: 2, types: ['a', 'b'], msg: 'daemon is running' }), false);
  expect(text).toMatch(/^\d\d:\d\d:\d\d info {2}daemon is running tenants=2 types=a,b\n$/);
});

test('the line of a failed attempt has type, target, attempt, error and a link', () => {
  const failed = { type: 'demo.fail', targetId: 'm 1', attempt: 2, error: { code: 'BOOM', message: 'no paper' } };
  const text = toTerminalText(line({ ...failed, level: 40, see: '/jobs/7', msg: 'attempt failed' }), false);
  expect(text).toContain(
    'warn  attempt failed type=demo.fail targetId="m 1" attempt=2 error="BOOM: no paper" see=/jobs/7',
  );
});

test('stacks are below the line, colors only on request, and other text is unchanged', () => {
  const err = { message: 'bad', stack: 'Error: bad\n    at file.ts:1' };
  expect(toTerminalText(line({ level: 50, err, msg: 'uncaught exception' }), false)).toMatch(
    /uncaught exception\n {4}Error: bad\n {4}at file\.ts:1\n$/,
  );
  expect(toTerminalText(line({ msg: 'x' }), true)).toContain('\x1b[36minfo');
  expect(toTerminalText('no JSON\n', false)).toBe('no JSON\n');
});

test('the line of the first Ctrl-C says what the daemon waits for, for how long, and what a second one does', () => {
  expect(explainDrain({ running: 2, types: ['import', 'render'], graceSeconds: 30 })).toBe(
    'Stopping. Waiting up to 30 s for 2 running jobs (import, render). Press Ctrl-C again to stop at once.',
  );
  expect(explainDrain({ running: 0, types: [], graceSeconds: 30 })).toBe('Stopping. No jobs are running.');
});
