// Finds the event that makes a follower's step fail, by taking smaller steps.
import { isDataError } from '../../database/data-error.ts';
import type { FollowResult } from './follower.ts';

/**
 * One call of `run`, unless an event makes it fail: then `run` gets past the events before that one, in ever
 * smaller steps, and `setAsideNext` has the next event alone. Events that commit meanwhile may come before it, so
 * `setAsideNext` must try the event first.
 */
export async function isolateFailingEvent(
  limit: number,
  run: (limit: number) => Promise<FollowResult>,
  setAsideNext: () => Promise<FollowResult>,
): Promise<FollowResult> {
  const whole = await orDataError(() => run(limit));
  if (whole !== 'faulty') return whole;
  let handled = 0;
  // The faulty event is among this many.
  let within = limit;
  while (within > 1) {
    const half = Math.ceil(within / 2);
    const part = await orDataError(() => run(half));
    if (part === 'faulty') {
      within = half;
      continue;
    }
    handled += part.handled;
    if (part.busy || part.complete) return { ...part, handled };
    within -= half;
  }
  const last = await setAsideNext();
  return { ...last, handled: handled + last.handled };
}

async function orDataError(step: () => Promise<FollowResult>): Promise<FollowResult | 'faulty'> {
  try {
    return await step();
  } catch (error) {
    if (isDataError(error)) return 'faulty';
    throw error;
  }
}
