// Retention of a tenant: finished jobs become stale, stale jobs are deleted, and old events, deliveries, leases,
// operations and statistics are removed. Transactions are small, so locks are short and vacuum keeps up. Also has the
// timer that deletes expired sessions of the dashboard.
import type { Database, Queryable } from '../database/database.ts';
import { type Statement, statement, tenant } from '../database/sql.ts';
import { pruneEvents } from '../events/seals/prune.ts';
import {
  deleteFreeKeys,
  deleteStaleJobs,
  findDeletableJobs,
  hookBatch,
  type RetentionHooks,
  readFinishedJobs,
} from '../jobs/retention/delete-stale.ts';
import { type MarkedStale, markStaleJobs, secondsBetweenScans } from '../jobs/retention/mark-stale.ts';
import type { Config } from '../kernel/config.ts';
import type { Logger } from '../kernel/logger.ts';
import { Interval } from '../kernel/service.ts';
import { pruneUsageDays } from '../stats/usage.ts';
import { deleteExpiredSessions } from '../tenants/api-keys/sessions.ts';
import type { Tenant } from '../tenants/tenant.ts';
import { msOrInfinity, type ProbeResults } from './probes.ts';

export interface RetentionOptions {
  config: Pick<
    Config,
    'retentionStaleAfterSeconds' | 'retentionDeleteAfterSeconds' | 'retentionEventDays' | 'retentionReceivedEventDays'
  >;
  actor: string;
  logger: Logger;
  hooks?: RetentionHooks | undefined;
  /** Ends the run between two statements. */
  signal?: AbortSignal;
  batch?: number;
  maxBatches?: number;
}

export interface RetentionReport {
  stale: number;
  deleted: number;
  events: number;
  deliveries: number;
  leases: number;
  operations: number;
  received: number;
  uniqueKeys: number;
  setAside: number;
  minutes: number;
  /** False if the run reached its limit and there is more. */
  complete: boolean;
}

// A batch takes some 20 ms, so a run takes at most a few seconds; the next one continues.
const defaultBatch = 500;
const defaultMaxBatches = 40;
// Enqueued, started, finished, and sometimes more.
const eventsPerJob = 4;
const secondsPerDay = 86_400;
// The id of an abandoned claim stays reserved for as long as its statement might still arrive.
const minLeaseDays = 1;
// The range of the charts.
const minDaysOfMinutes = 32;

export async function runRetentionOnce(
  db: Database,
  tenant: Tenant,
  options: RetentionOptions,
): Promise<RetentionReport> {
  const { schema } = tenant;
  const { staleAfterSeconds, staleForSeconds, eventDays, logSeconds, minuteDays } = retentionTermsOf(
    tenant,
    options.config,
  );
  const { actor, batch: limit = defaultBatch } = options;
  const report = { ...nothing };
  // A batch below the limit means that nothing is left, or that others have locked the remaining rows.
  const run = (kind: Kind, step: () => Promise<number>) =>
    repeat(report, kind, options, async () => {
      const count = await step();
      return { count, complete: count < limit };
    });

  let readTo: MarkedStale['readTo'];
  await repeat(report, 'stale', options, async () => {
    const marked = await markStaleJobs(db, schema, {
      afterSeconds: staleAfterSeconds,
      actor,
      limit: limit * eventsPerJob,
    });
    readTo = marked.readTo;
    if (marked.skipped.length > 0) {
      options.logger.warn({ tenant: tenant.slug, jobIds: marked.skipped }, 'jobs could not be marked as stale');
    }
    await callOnStale(db, tenant, options, marked.ids);
    return { count: marked.count, complete: marked.complete };
  });
  if (options.hooks?.onDelete === undefined) {
    await run('deleted', () => deleteStaleJobs(db, schema, { staleForSeconds, actor, limit }));
  } else await repeat(report, 'deleted', options, () => deleteAfterHook(db, tenant, options, staleForSeconds));
  const deleteOld = (kind: keyof typeof oldRows, days: number) =>
    run(kind, async () => (await oldRows[kind].query(db, schema, { days, limit })).length);
  await deleteOld('deliveries', eventDays);
  await deleteOld('leases', Math.max(eventDays, minLeaseDays));
  await deleteOld('operations', eventDays);
  await deleteOld('received', options.config.retentionReceivedEventDays);
  await run('uniqueKeys', () => deleteFreeKeys(db, schema, limit));
  await deleteOld('setAside', eventDays);
  await deleteOld('minutes', minuteDays);
  if (!options.signal?.aborted) await pruneUsageDays(db, schema, minuteDays);
  if (!options.signal?.aborted && readTo !== undefined) {
    const pruned = await pruneEvents(db, schema, { olderThanSeconds: logSeconds, upTo: readTo });
    report.events = pruned.events;
    report.complete &&= pruned.complete;
  }
  return report;
}

// Sessions last for hours, so a delay of some minutes is acceptable.
const sessionRetentionMs = 10 * 60_000;

/** Deletes expired sessions of the dashboard. They belong to no tenant, so this is a separate timer. */
export function createSessionRetention(db: Queryable, logger: Logger): Interval {
  const run = async () => {
    for (let i = 0; i < defaultMaxBatches; i++) {
      if ((await deleteExpiredSessions(db, defaultBatch)) < defaultBatch) return;
    }
  };
  return new Interval('session-retention', sessionRetentionMs, run, logger);
}

async function callOnStale(
  db: Queryable,
  { slug, schema }: Tenant,
  { hooks, logger }: RetentionOptions,
  ids: readonly string[],
): Promise<void> {
  if (hooks?.onStale === undefined) return;
  for (let from = 0; from < ids.length; from += hookBatch) {
    try {
      await hooks.onStale(slug, await readFinishedJobs(db, schema, ids.slice(from, from + hookBatch)));
    } catch (error) {
      logger.error({ err: error, tenant: slug }, 'onStale failed');
    }
  }
}

/** No lock is held while the hook runs. Jobs that the hook has not seen stay. */
async function deleteAfterHook(
  db: Queryable,
  { slug, schema }: Tenant,
  { hooks, actor, logger }: RetentionOptions,
  staleForSeconds: number,
): Promise<{ count: number; complete: boolean }> {
  const jobs = await findDeletableJobs(db, schema, { staleForSeconds, limit: hookBatch });
  if (jobs.length === 0) return { count: 0, complete: true };
  try {
    await hooks?.onDelete?.(slug, jobs);
  } catch (error) {
    logger.error({ err: error, tenant: slug }, 'onDelete failed; the jobs are kept');
    return { count: 0, complete: true };
  }
  const ids = jobs.map(({ id }) => id);
  const count = await deleteStaleJobs(db, schema, { staleForSeconds, actor, limit: hookBatch, ids });
  return { count, complete: jobs.length < hookBatch };
}

const nothing: RetentionReport = {
  stale: 0,
  deleted: 0,
  events: 0,
  deliveries: 0,
  leases: 0,
  operations: 0,
  received: 0,
  uniqueKeys: 0,
  setAside: 0,
  minutes: 0,
  complete: true,
};

/** Returns how long each kind of row is kept for this tenant. */
function retentionTermsOf(tenant: Tenant, config: RetentionOptions['config']) {
  const own = tenant.settings.retention;
  const staleAfterSeconds = own?.stale_after_seconds ?? config.retentionStaleAfterSeconds;
  const deleteAfterSeconds = own?.delete_after_seconds ?? config.retentionDeleteAfterSeconds;
  const eventDays = own?.event_days ?? config.retentionEventDays;
  return {
    staleAfterSeconds,
    staleForSeconds: Math.max(0, deleteAfterSeconds - staleAfterSeconds),
    eventDays,
    // The log shows which jobs become stale, so no event is pruned before it has been read for that.
    logSeconds: Math.max(eventDays * secondsPerDay, staleAfterSeconds),
    minuteDays: Math.max(eventDays, minDaysOfMinutes),
  };
}

/** Returns the time until the first row of the tenant reaches its age, from the probes of the task `retention`. */
export function msUntilRetention(results: ProbeResults, tenant: Tenant, config: RetentionOptions['config']): number {
  const terms = retentionTermsOf(tenant, config);
  const due = (name: string, seconds: number) => msOrInfinity(results[name]) + seconds * 1000;
  const eventSeconds = terms.eventDays * secondsPerDay;
  return Math.min(
    due('unread_ms', terms.staleAfterSeconds),
    due('unscanned_ms', terms.staleAfterSeconds),
    due('scanned_ms', secondsBetweenScans),
    due('sealed_ms', terms.logSeconds),
    due('stale_ms', terms.staleForSeconds),
    due('minute_ms', terms.minuteDays * secondsPerDay),
    due('delivered_ms', eventSeconds),
    due('released_ms', eventSeconds),
    due('operated_ms', eventSeconds),
    due('received_ms', config.retentionReceivedEventDays * secondsPerDay),
  );
}

type Kind = Exclude<keyof RetentionReport, 'complete'>;

async function repeat(
  report: RetentionReport,
  kind: Kind,
  options: RetentionOptions,
  step: () => Promise<{ count: number; complete: boolean }>,
): Promise<void> {
  for (let i = 0; i < (options.maxBatches ?? defaultMaxBatches); i++) {
    if (options.signal?.aborted) break;
    const { count, complete } = await step();
    report[kind] += count;
    if (complete) return;
  }
  report.complete = false;
}

function deleteOlder(table: string, column: string): Statement {
  return statement(`
  with old as (
    select id
      from ${tenant}.${table}
     where ${column} is not null
       and ${column} < now() - :days::float8 * interval '1 day'
     order by ${column}
     limit :limit
       for update skip locked
  )
  delete from ${tenant}.${table}
   where id = any(array(select id from old))
  returning id`);
}

/** Each deletes up to `limit` rows that are older than `days`. */
const oldRows = {
  deliveries: deleteOlder('webhook_deliveries', 'finished_at'),
  leases: deleteOlder('leases', 'released_at'),
  operations: deleteOlder('operations', 'finished_at'),
  received: deleteOlder('received_events', 'received_at'),
  // There are few rows or none, so no index is needed.
  setAside: statement(`
  with old as (
    select follower, event_xid, event_seq
      from ${tenant}.set_aside_events
     where set_aside_at < now() - :days::float8 * interval '1 day'
     limit :limit
  )
  delete from ${tenant}.set_aside_events s
   using old o
   where s.follower = o.follower
     and s.event_xid = o.event_xid
     and s.event_seq = o.event_seq
  returning s.follower`),
  // Queue by queue, oldest first, because the primary key keeps the rows of one queue together.
  minutes: statement(`
  with old as (
    select q.queue, m.minute
      from (select queue from ${tenant}.stat_minutes where minute = '-infinity') q
     cross join lateral (
       select minute
         from ${tenant}.stat_minutes s
        where s.queue = q.queue
          and s.minute > '-infinity'
          and s.minute < now() - :days::float8 * interval '1 day'
        order by minute
        limit :limit
     ) m
     limit :limit
  )
  delete from ${tenant}.stat_minutes s
   using old o
   where s.queue = o.queue
     and s.minute = o.minute
  returning s.queue`),
} as const;
