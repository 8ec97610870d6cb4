// Tells those who follow the event log where there is something new for them, so that none of them
// has to visit every tenant: an event may come from a daemon that is gone.
import { hasLateEvents } from '../events/log/read-new-events.ts';
import { sealsFollower } from '../events/seals/seal-chain.ts';
import { msOrInfinity, msUntil } from './probe-tenants.ts';
import type { PolledTask } from './tenant-poller.ts';

interface Follower {
  wake(slug: string): void;
}

export interface Followers {
  statistics: Follower;
  webhooks: Follower;
  seals: Follower;
}

const all = ['statistics', 'webhooks', sealsFollower];

export function createFollowerPoll(everyMs: number, { statistics, webhooks, seals }: Followers): PolledTask {
  return {
    name: 'followers',
    everyMs,
    suspended: true,
    probes: {
      written: (s) => `${latest(s)} is not null`,
      followers: (s) => `(select string_agg(f.name, ',') from ${s}.followers f where ${hasSeenAll(s)})`,
      delivery_ms: (s) =>
        `(select ${msUntil('next_at')} from ${s}.webhook_deliveries where state = 'pending' order by next_at limit 1)`,
    },
    isIdle: ({ written, followers, delivery_ms }, restMs) =>
      written === false || (all.every((name) => upToDate(followers).has(name)) && msOrInfinity(delivery_ms) > restMs),
    onResults(found) {
      for (const { tenant, results: answers, hasNewEvents: stirred } of found) {
        if (answers.written === false) continue;
        const seen = upToDate(answers.followers);
        // What another daemon has counted is still to be shown here.
        if (stirred || !seen.has('statistics')) statistics.wake(tenant.slug);
        if (!seen.has('webhooks') || msOrInfinity(answers.delivery_ms) <= 0) webhooks.wake(tenant.slug);
        if (!seen.has(sealsFollower)) seals.wake(tenant.slug);
      }
    },
  };
}

/** No event is outside its snapshot, it is not in the middle of a large read, and not ahead of a restored database. */
function hasSeenAll(schema: string): string {
  const seen = `split_part(f.snapshot, '|', 1)::pg_snapshot`;
  return `strpos(f.snapshot, '|') = 0 and pg_snapshot_xmax(${seen}) <= pg_snapshot_xmax(pg_current_snapshot())
    and coalesce(${latest(schema)} < pg_snapshot_xmax(${seen}), true) and not ${hasLateEvents(schema, seen)}`;
}

/** Read at the end of the primary key: a condition might be looked for in the whole log. */
function latest(schema: string): string {
  return `(select e.xid from ${schema}.events e order by e.xid desc, e.seq desc limit 1)`;
}

function upToDate(followers: unknown): Set<string> {
  return new Set(typeof followers === 'string' ? followers.split(',') : []);
}
