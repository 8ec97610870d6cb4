// Limits as a definition of a job type declares them.
import { limitNamePattern, limitSetting } from '../../tenants/limit.ts';

export interface JobLimit {
  /** By default the type. A limit of the same name in a tenant's settings replaces it. */
  name?: string;
  /** Starts per `per`, by default a second. */
  rate?: number;
  per?: 'second' | 'minute' | 'hour' | 'day';
  /** Starts that may come at once after a pause; by default those of one second, at least 1. */
  burst?: number;
  /** Jobs that may run at once, on all daemons and workers. */
  concurrency?: number;
  /** Counts each value separately: `payload.account`, `target_id` or `author`. */
  key?: string;
}

/** Why these are no limits of the type; undefined if they are. */
export function findLimitError({ type, limits }: { type: string; limits?: readonly JobLimit[] }): string | undefined {
  if (limits === undefined) return undefined;
  if (!Array.isArray(limits)) return 'limits must be a list';
  const names = new Set<string>();
  for (const [n, { name = n === 0 ? type : `${type}-${n + 1}`, ...limit }] of limits.entries()) {
    if (!limitNamePattern.test(name)) return `the name of a limit must match ${limitNamePattern.source}, not "${name}"`;
    if (names.has(name)) return `two limits are named "${name}"`;
    names.add(name);
    const issue = limitSetting.safeParse(limit).error?.issues[0];
    if (issue !== undefined)
      return `limit "${name}": ${[issue.path.join('.'), issue.message].filter(Boolean).join(' ')}`;
  }
  return undefined;
}
