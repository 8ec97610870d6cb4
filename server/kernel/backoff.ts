// Delays between attempts. A pure function: the caller passes the random number.
import { assertNever } from './errors.ts';

export interface BackoffPolicy {
  kind: 'fixed' | 'linear' | 'exponential';
  delaySeconds: number;
  maxDelaySeconds: number;
  /** Share of the delay that is random: 0 = none, 1 = anything between 0 and the delay. */
  jitter: number;
}

export const defaultBackoff: BackoffPolicy = {
  kind: 'exponential',
  delaySeconds: 1,
  maxDelaySeconds: 300,
  jitter: 0.2,
};

/** Milliseconds to wait after failed attempt number `attempt` (the first is 1). */
export function backoffMs(policy: BackoffPolicy, attempt: number, random: number): number {
  const n = Math.max(1, attempt);
  const seconds = Math.min(grow(policy, n), policy.maxDelaySeconds);
  return Math.round(seconds * 1000 * (1 - policy.jitter * random));
}

function grow(policy: BackoffPolicy, n: number): number {
  switch (policy.kind) {
    case 'fixed':
      return policy.delaySeconds;
    case 'linear':
      return policy.delaySeconds * n;
    case 'exponential':
      // 2^60 is far beyond every cap and still a finite number.
      return policy.delaySeconds * 2 ** Math.min(n - 1, 60);
    default:
      return assertNever(policy.kind);
  }
}
