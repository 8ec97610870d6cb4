// The shared safety poll: finds tenants with work that no wake-up announced, and the next due times.
import { msOrInfinity, msUntil } from './probe-tenants.ts';
import type { PolledTask } from './tenant-poller.ts';

interface Timers {
  dueIn(slug: string, ms: number): void;
}

export interface PollTargets extends Timers {
  wake(slug: string): void;
}

export function createWorkPoll(everyMs: number, workers: PollTargets, schedules?: Timers): PolledTask {
  return {
    name: 'poll',
    everyMs,
    suspended: false,
    probes: {
      claimable: (s) => `exists (select 1 from ${s}.jobs where status = 'QUEUED' and lane_head and not remote)`,
      due_ms: (s) => `(select ${msUntil('run_at')} from ${s}.jobs where status = 'PENDING' order by run_at limit 1)`,
      fires_ms: (s) =>
        `(select ${msUntil('next_at')} from ${s}.schedules where paused_at is null and next_at is not null order by next_at limit 1)`,
    },
    isIdle: ({ claimable, due_ms, fires_ms }, restMs) =>
      claimable !== true && msOrInfinity(due_ms) > restMs && msOrInfinity(fires_ms) > restMs,
    onResults(found) {
      for (const { tenant, results: answers } of found) {
        if (answers.claimable === true) workers.wake(tenant.slug);
        if (typeof answers.due_ms === 'number') workers.dueIn(tenant.slug, Math.max(0, answers.due_ms));
        if (typeof answers.fires_ms === 'number') schedules?.dueIn(tenant.slug, Math.max(0, answers.fires_ms));
      }
    },
  };
}
