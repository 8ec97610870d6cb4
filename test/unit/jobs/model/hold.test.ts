import { expect, it } from 'vitest';
import { describeHold, holdOf } from '../../../../server/jobs/model/hold.ts';

const hold = { kind: 'user', reason: 'lunch', author: 'ann', since: null, handler: null } as const;
const stopping = 'The job was asked to pause, and the handler has not stopped';

it.each([
  [hold, 'paused by ann: lunch'],
  [{ ...hold, handler: 'running' } as const, 'paused by ann: lunch; its handler had not stopped'],
  [{ ...hold, reason: null, author: null } as const, 'paused'],
  [
    { ...hold, kind: 'handler', author: null, reason: stopping, handler: 'running' } as const,
    `handler still running: ${stopping}`,
  ],
])('%j reads %s', (given, text) => {
  expect(describeHold(given)).toBe(text);
});

it('writes the time of an unresponsive handler in the format of all other times', () => {
  const stored = { kind: 'handler', since: '2026-01-02T09:00:01.25+00:00', handler: 'running' } as const;
  const running = { status: 'RUNNING', heldSince: null, error: null, hold: stored } as const;
  expect(holdOf(running)?.since).toBe('2026-01-02T09:00:01.25Z');
});
