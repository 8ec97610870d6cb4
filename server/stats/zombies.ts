// Zombies: attempts whose lease expired because their holder stopped renewing it. The roll-ups have the minutes in which
// there were any; only those minutes are read from the log.
import type { Queryable } from '../database/database.ts';
import type { Schema } from '../database/identifiers.ts';
import type { Event } from '../events/log/event.ts';
import { readLog } from '../events/log/read-log.ts';
import { hasCode } from '../jobs/model/job-errors.ts';
import { allQueues } from './read-counts.ts';

export interface Zombie {
  jobId: string;
  targetId: string | null;
  at: string;
  attempt: number | null;
  leaseId: string | null;
  /** The holder of the lease. */
  owner: string | null;
  /** `failed`: no attempt was left. */
  outcome: 'retried' | 'failed';
}

// Each is one read of the log. A day with more minutes of lost leases gets a shorter list.
const maxMinutes = 20;

/** Of the last 24 hours, newest first. */
export async function readZombies(db: Queryable, schema: Schema, limit: number): Promise<Zombie[]> {
  const minutes = await db.query<{ minute: string; ending: string }>(
    `select minute, minute + interval '1 minute' as ending from ${schema}.stat_minutes
      where queue = $1 and minute > now() - interval '24 hours' and leases_expired > 0 order by minute desc limit $2`,
    [allQueues, maxMinutes],
  );
  const zombies: Zombie[] = [];
  for (const { minute, ending } of minutes) {
    if (zombies.length >= limit) break;
    const request = { types: ['job.lease_expired', 'job.failed'], since: minute, until: ending, limit: 1000 };
    const { events } = await readLog(db, schema, request);
    zombies.push(...events.flatMap(toZombie));
  }
  return zombies.slice(0, limit);
}

function toZombie(event: Event): Zombie[] {
  const error = event.data?.error as { code?: string; owner?: string } | undefined;
  const lost = event.type === 'job.lease_expired' || hasCode(error, 'LEASE_EXPIRED');
  if (!lost || event.jobId === null) return [];
  return [
    {
      jobId: event.jobId,
      targetId: event.targetId,
      at: event.at,
      attempt: event.attempt,
      leaseId: event.leaseId,
      owner: error?.owner ?? null,
      outcome: event.type === 'job.failed' ? 'failed' : 'retried',
    },
  ];
}
