// The end of a run: what moves may go on, what stands still is found.
import { beforeEach, expect, test, vi } from 'vitest';
import { maxDrainMs, Progress, stalledMs } from '../../faults/progress.ts';

beforeEach(() => {
  vi.useFakeTimers({ toFake: ['performance'] });
  return () => void vi.useRealTimers();
});

const head = (state: string) => ({ id: 'head', state, isFirst: true });
const waiting = (id: string) => ({ id, state: 'QUEUED', isFirst: false });
/** In steps that are shorter than the limit, as the run looks again and again. */
const step = stalledMs * 0.6;

test('a lane may take as long as it needs while its head changes', () => {
  const progress = new Progress();
  for (let n = 0; n < 10; n++) {
    progress.check([head(`RUNNING ${n}`), waiting('second'), waiting('third')]);
    vi.advanceTimersByTime(step);
  }
});

test('a job that could start and does not is found, although others move', () => {
  const progress = new Progress();
  const look = (n: number) => progress.check([head('QUEUED'), { ...waiting('other'), state: `RUNNING ${n}` }]);
  look(0);
  vi.advanceTimersByTime(step);
  look(1);
  vi.advanceTimersByTime(step);
  expect(() => look(2)).toThrow('job head has not changed');
});

test('a job that waited long in its lane has time when its turn comes', () => {
  const progress = new Progress();
  for (let n = 0; n < 5; n++) {
    progress.check([head(`RUNNING ${n}`), waiting('second')]);
    vi.advanceTimersByTime(step);
  }
  progress.check([{ ...waiting('second'), isFirst: true }]);
});

test('jobs that wait, of which none changes, are found', () => {
  const progress = new Progress();
  const left = [waiting('one'), waiting('two')];
  progress.check(left);
  vi.advanceTimersByTime(stalledMs + 1);
  expect(() => progress.check(left)).toThrow('none of 2 jobs has changed');
});

test('a run that never ends is found, although everything moves', () => {
  const progress = new Progress();
  const forever = () => {
    for (let n = 0; n * step < 2 * maxDrainMs; n++) {
      progress.check([head(`RUNNING ${n}`)]);
      vi.advanceTimersByTime(step);
    }
  };
  expect(forever).toThrow('are left after');
});
