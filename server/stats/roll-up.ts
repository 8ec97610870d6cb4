// The statistics follower: turns changes of status into counts per queue and minute, and keeps the
// present number of jobs in each status. The events are grouped where they lie; only groups travel.

import type { Database } from '../database/database.ts';
import type { Schema } from '../database/identifiers.ts';
import type { FollowResult } from '../events/log/follower.ts';
import { followSelection } from '../events/log/follower.ts';
import { hasCodeSql } from '../jobs/model/job-errors.ts';
import { Problem } from '../kernel/errors.ts';
import { boundsSeconds } from './histogram.ts';
import { addGroup, type Group, newMinutes, saveMinutes } from './minutes.ts';

// A transaction of well under a second, so that a burst neither holds a connection nor bloats.
const eventsPerStep = 10_000;

export async function rollUpOnce(db: Database, schema: Schema, limit = eventsPerStep): Promise<FollowResult> {
  const selection = { name: 'statistics', limit, ctes: groupEvents(schema), from: 'groups', values: [boundsSeconds] };
  return followSelection<Group>(db, schema, selection, {
    async handle(tx, groups) {
      const minutes = newMinutes();
      for (const group of groups) addGroup(minutes, group);
      await saveMinutes(tx, schema, minutes);
    },
  });
}

// A reader does not wait for the backlog of a burst: the follower catches up in the background.
const stepsForReader = 3;

/** Counts what has happened until now, so that a reader sees what it has just done. */
export async function rollUpNow(db: Database, schema: Schema): Promise<void> {
  try {
    for (let step = 0; step < stepsForReader; step++) {
      if ((await rollUpOnce(db, schema)).complete) return;
    }
  } catch (error) {
    // Another daemon counted the same events first.
    if (!(error instanceof Problem) || error.code !== 'CONFLICT') throw error;
  }
}

// How long a job waited and ran is its row's business; a row that has moved on since tells nothing.
function groupEvents(schema: Schema): string {
  return `changes as materialized (
       select at, type, job_id, from_status, to_status, data from log
        where until is null and job_id is not null and from_status is distinct from to_status),
     about as materialized (
       select id, queue, run_at, started_at from ${schema}.jobs where id = any(array(select job_id from changes))),
     told as (
       select date_trunc('minute', c.at) as minute, coalesce(j.queue, c.data ->> 'queue', 'default') as queue,
              c.type, c.from_status, c.to_status,
              coalesce(c.type = 'job.lease_expired' or ${hasCodeSql('LEASE_EXPIRED', `c.data -> 'error'`)}, false) as expired,
              case when c.to_status = 'RUNNING' and j.run_at <= c.at
                   then width_bucket(extract(epoch from c.at - j.run_at)::float8, $9::float8[]) end as wait,
              case when c.from_status = 'RUNNING' and j.started_at <= c.at
                   then width_bucket(extract(epoch from c.at - j.started_at)::float8, $9::float8[]) end as run
         from changes c left join about j on j.id = c.job_id),
     groups as (
       select minute, queue, type, from_status, to_status, expired, wait, run, count(*)::int as count
         from told group by 1, 2, 3, 4, 5, 6, 7, 8)`;
}
