// The table of periodic tasks: what runs, how often, and which probes it sends to every tenant.
//
// Polled tasks (`createPolledTasks`) share one statement: the tenant poller sends the probes of all tasks that are due,
// for all tenants that are not idle. A probe reads the front of a small index, never a table.
//
//   poll        POLL_INTERVAL_SECONDS   claimable, gated and due jobs, schedules    wakes workers and gates, sets timers
//   followers   SWEEP_INTERVAL_SECONDS  followers of the event log that are behind  wakes them
//   operations  SWEEP_INTERVAL_SECONDS  a bulk operation that no daemon runs        wakes operations
//   received    SWEEP_INTERVAL_SECONDS  an undelivered event from outside           wakes its delivery
//   sweep       SWEEP_INTERVAL_SECONDS  expired leases, timeouts, deadlines, pauses sweeps
//   retention   1 minute                the age of the oldest row of each kind      wakes retention
//
// Per-tenant tasks (periodic-tasks.ts) run only for tenants that were woken, by a polled task or by a commit.
// Timers that are not about tenants (registry, keys, registration, heartbeat, expired sessions) belong to their own
// services.

import { isAtGate, isClaimable } from '../database/tables/tenant-jobs.ts';
import { sealsFollower } from '../events/seals/seal-chain.ts';
import { hasDependencyWork } from '../jobs/flows/follow-dependencies.ts';
import { canaryOverdueSql } from '../jobs/lanes/conclude-canaries.ts';
import { defaultTimeout, isTimedOutSql } from '../jobs/model/job.ts';
import { ownedStatuses, statusIn, timedStatuses, unstartedStatuses } from '../jobs/model/states.ts';
import { isFinishedSql } from '../jobs/retention/delete-stale.ts';
import type { Config } from '../kernel/config.ts';
import { allQueues, currentCountsKey } from '../stats/read-counts.ts';
import type { PerTenantTasks } from './per-tenant-task.ts';
import {
  hasReadAll,
  lastEventXid,
  msOrInfinity,
  msUntil,
  oldest,
  type ProbeResults,
  retentionFollower,
  unreadByRetention,
} from './probes.ts';
import { msUntilRetention } from './retention.ts';
import type { PolledTask, PollResult } from './tenant-poller.ts';

const minuteMs = 60_000;

interface Wakeable {
  wake(slug: string): void;
}

interface DueTimer {
  dueIn(slug: string, ms: number): void;
}

export interface PolledTaskParts {
  config: Config;
  workers: Wakeable & DueTimer & { wakeGate(slug: string): void };
  /** Wakes the workers of the other daemons. */
  wakePeers(slug: string): void;
  schedules: DueTimer;
  sweeper: { sweep(found: PollResult[]): Promise<void> };
  tasks: Record<keyof PerTenantTasks, Wakeable>;
}

export function createPolledTasks(parts: PolledTaskParts): PolledTask[] {
  const { config, workers, schedules, sweeper, tasks } = parts;
  const pollMs = config.pollIntervalSeconds * 1000;
  const sweepMs = config.sweepIntervalSeconds * 1000;
  const graceMs = config.staleLeaseGraceSeconds * 1000;
  return [
    {
      // The backstop for lost wake-ups.
      name: 'poll',
      everyMs: pollMs,
      includesSuspended: false,
      probes: {
        claimable: (s) => `exists (select 1 from ${s}.jobs where ${isClaimable('daemon')})`,
        gated: (s) => `exists (select 1 from ${s}.jobs where ${isAtGate()})`,
        due_ms: (s) => oldest(s, 'jobs', 'run_at', statusIn(timedStatuses)),
        fires_ms: (s) => oldest(s, 'schedules', 'next_at', 'paused_at is null and next_at is not null'),
      },
      isIdle: ({ claimable, gated, due_ms, fires_ms }, idleForMs) =>
        claimable !== true && gated !== true && msOrInfinity(due_ms) > idleForMs && msOrInfinity(fires_ms) > idleForMs,
      onResults(found) {
        for (const { tenant, results, hasNewEvents, wasIdle } of found) {
          if (results.claimable === true) workers.wake(tenant.slug);
          // A change made directly in SQL. This daemon may have no handler for the job.
          if (results.claimable === true && wasIdle && !hasNewEvents) parts.wakePeers(tenant.slug);
          if (results.gated === true) workers.wakeGate(tenant.slug);
          if (typeof results.due_ms === 'number') workers.dueIn(tenant.slug, Math.max(0, results.due_ms));
          if (typeof results.fires_ms === 'number') schedules.dueIn(tenant.slug, Math.max(0, results.fires_ms));
        }
      },
    },
    {
      // Events may have been written by a daemon that is gone.
      name: 'followers',
      everyMs: sweepMs,
      includesSuspended: true,
      probes: {
        has_events: (s) => `${lastEventXid(s)} is not null`,
        up_to_date: (s) => `(select string_agg(f.name, ',') from ${s}.followers f where ${hasReadAll(s)})`,
        delivery_ms: (s) => oldest(s, 'webhook_deliveries', 'next_at', `state = 'pending'`),
        dependencies_wait: (s) => hasDependencyWork(s, hasReadAll(s)),
      },
      isIdle: (results, idleForMs) =>
        results.has_events === false ||
        (results.dependencies_wait !== true &&
          ['statistics', 'webhooks', sealsFollower].every((name) => upToDate(results).has(name)) &&
          msOrInfinity(results.delivery_ms) > idleForMs),
      onResults(found) {
        for (const { tenant, results, hasNewEvents } of found) {
          if (results.has_events === false) continue;
          const done = upToDate(results);
          // The gauges of this daemon must show events that another daemon has counted.
          if (hasNewEvents || !done.has('statistics')) tasks.statistics.wake(tenant.slug);
          if (!done.has('webhooks') || msOrInfinity(results.delivery_ms) <= 0) tasks.webhooks.wake(tenant.slug);
          if (!done.has(sealsFollower)) tasks.seals.wake(tenant.slug);
          if (hasNewEvents) tasks.listeners.wake(tenant.slug);
          if (results.dependencies_wait === true) tasks.dependencies.wake(tenant.slug);
        }
      },
    },
    {
      // A new operation is started at once where it was requested; this finds those of a daemon that died.
      name: 'operations',
      everyMs: sweepMs,
      includesSuspended: false,
      probes: {
        // True if no daemon runs it; false: one does; null: there is none.
        operation_waits: (s) =>
          `(select locked_until is null or locked_until < now() from ${s}.operations
             where status = 'running' order by locked_until nulls first limit 1)`,
      },
      isIdle: ({ operation_waits }) => operation_waits === null,
      onResults(found) {
        for (const { tenant, results } of found) {
          if (results.operation_waits === true) tasks.operations.wake(tenant.slug);
        }
      },
    },
    {
      // A new event is delivered at once by the daemon that received it; this finds those of a daemon that died.
      name: 'received',
      everyMs: sweepMs,
      includesSuspended: false,
      probes: {
        undelivered: (s) => `exists (select 1 from ${s}.received_events where delivered_at is null)`,
      },
      isIdle: ({ undelivered }) => undelivered !== true,
      onResults(found) {
        for (const { tenant, results } of found) if (results.undelivered === true) tasks.received.wake(tenant.slug);
      },
    },
    {
      name: 'sweep',
      everyMs: sweepMs,
      includesSuspended: true,
      probes: {
        lease_ms: (s) => `(select ${msUntil('min(expires_at)')} from ${s}.leases where state = 'ACTIVE')`,
        // The earliest expiry of leases that the sweeper does not recover now.
        next_lease_ms: (s) =>
          `(select ${msUntil('min(expires_at)')} from ${s}.leases
             where state = 'ACTIVE' and expires_at >= now() - interval '${config.staleLeaseGraceSeconds} seconds')`,
        // More than zero if an owned job has no active lease, as after a change made directly in SQL. The counts come
        // from the log, so that an idle tenant costs the read of one row.
        unleased: (s) =>
          `(${ownedCount(s)}) - (select coalesce(sum(cardinality(job_ids)), 0) from ${s}.leases where state = 'ACTIVE')::float8`,
        timeouts: (s, tenant) =>
          `exists (select 1 from ${s}.leases l join ${s}.jobs j on j.id = l.job_ids[1] and j.lease_id = l.id
                    where l.state = 'ACTIVE' and l.kind = 'remote' and j.status = 'RUNNING'
                      and ${isTimedOutSql(String(defaultTimeout(tenant, config.jobTimeoutSeconds)))})`,
        expires_ms: (s) => oldest(s, 'jobs', 'expires_at', `expires_at is not null and ${statusIn(unstartedStatuses)}`),
        resumes_ms: (s) => oldest(s, 'targets', 'paused_until', 'paused_until is not null'),
        // Null if there is no canary.
        canary_ended: (s) =>
          `(select case when exists (select 1 from ${s}.targets where canary_job_id is not null) then ${canaryOverdueSql(s)} end)`,
      },
      // Never while there is a lease: one can expire at any time without an event.
      isIdle: ({ lease_ms, expires_ms, resumes_ms, canary_ended }, idleForMs) =>
        lease_ms === null &&
        canary_ended === null &&
        msOrInfinity(expires_ms) > idleForMs &&
        msOrInfinity(resumes_ms) > idleForMs,
      // A lease that was not renewed in time is recovered as soon as its grace is over.
      soonMs: ({ next_lease_ms }) =>
        msOrInfinity(next_lease_ms) < 0 ? msOrInfinity(next_lease_ms) + graceMs : Number.POSITIVE_INFINITY,
      onResults: (found) => sweeper.sweep(found),
    },
    {
      name: 'retention',
      everyMs: minuteMs,
      idleMs: 60 * minuteMs,
      includesSuspended: true,
      // When the oldest row of each kind was last of use: never in the future.
      probes: {
        unread_ms: (s) => oldest(s, 'events', 'at', unreadByRetention(s), 'xid, seq'),
        unscanned_ms: (s) =>
          oldest(s, 'jobs', 'created_at', `not exists (${retentionFollower(s)} and state ? 'looked_at')`, 'id'),
        scanned_ms: (s) => `(${retentionFollower(s, msUntil(`(state ->> 'looked_at')::timestamptz`))})`,
        stale_ms: (s) => oldest(s, 'jobs', 'stale_at', `stale_at is not null and ${isFinishedSql}`),
        delivered_ms: (s) => oldest(s, 'webhook_deliveries', 'finished_at', 'finished_at is not null'),
        released_ms: (s) => oldest(s, 'leases', 'released_at', 'released_at is not null'),
        operated_ms: (s) => oldest(s, 'operations', 'finished_at', 'finished_at is not null'),
        received_ms: (s) => oldest(s, 'received_events', 'received_at', 'true'),
        minute_ms: (s) => oldest(s, 'stat_minutes', 'minute', `queue = '' and minute > '-infinity'`),
        sealed_ms: (s) => oldest(s, 'event_seals', 'sealed_at', `pruned_at is null and kind = 'events'`, 'number'),
      },
      isIdle: (results, idleForMs, tenant) => msUntilRetention(results, tenant, config) > idleForMs,
      onResults(found) {
        for (const { tenant, results } of found) {
          if (msUntilRetention(results, tenant, config) <= 0) tasks.retention.wake(tenant.slug);
        }
      },
    },
  ];
}

/** SQL: the number of owned jobs, by the log. */
function ownedCount(schema: string): string {
  const counts = ownedStatuses.map((status) => `coalesce((deltas ->> '${status}')::float8, 0)`).join(' + ');
  return `coalesce((select ${counts} from ${schema}.stat_minutes
             where queue = '${allQueues}' and minute = '${currentCountsKey}'), 0)`;
}

function upToDate({ up_to_date }: ProbeResults): Set<string> {
  return new Set(typeof up_to_date === 'string' ? up_to_date.split(',') : []);
}
