// The statistics follower: turns changes of status into counts per queue and minute, and keeps the
// present number of jobs in each status. The events are grouped where they lie; only groups travel.
import type { Database, Queryable } from '../database/database.ts';
import type { Schema } from '../database/identifiers.ts';
import { goOn, readStatement, readValues } from '../events/follow.ts';
import { type Followed, followInSteps, type Step } from '../events/follower.ts';
import type { Position } from '../events/position.ts';
import { boundsSeconds } from './histogram.ts';
import { addGroup, type Group, type Minutes, newMinutes, saveMinutes } from './minutes.ts';

// A transaction of well under a second, so that a burst neither holds a connection nor bloats.
const eventsPerStep = 10_000;

export async function rollUpOnce(db: Database, schema: Schema, limit = eventsPerStep): Promise<Followed> {
  return followInSteps(db, schema, 'statistics', { startAt: 'beginning' }, async (tx, position, state) => {
    const { groups, ...read } = await readGroups(tx, schema, position, limit);
    const minutes: Minutes = newMinutes();
    for (const group of groups) addGroup(minutes, group);
    await saveMinutes(tx, schema, minutes);
    return { ...read, state };
  });
}

interface Row extends Group {
  until: string;
  moved: boolean;
  ahead: boolean;
  read: number;
  last_xid: string | null;
  last_seq: string | null;
}

type GroupedRead = Omit<Step<object>, 'state'> & { groups: Group[] };

async function readGroups(tx: Queryable, schema: Schema, position: Position, limit: number): Promise<GroupedRead> {
  const rows = await tx.query<Row>(
    `with log as materialized (${readStatement(schema)}),
     changes as materialized (
       select at, type, job_id, from_status, to_status, data from log
        where until is null and job_id is not null and from_status is distinct from to_status),
     about as materialized (
       select id, queue, run_at, started_at from ${schema}.jobs where id = any(array(select job_id from changes))),
     told as (
       select date_trunc('minute', c.at) as minute, coalesce(j.queue, c.data ->> 'queue', 'default') as queue,
              c.type, c.from_status, c.to_status,
              coalesce(c.type = 'job.lease_expired' or c.data -> 'error' ->> 'code' = 'LEASE_EXPIRED', false) as expired,
              case when c.to_status = 'RUNNING' and j.run_at <= c.at
                   then width_bucket(extract(epoch from c.at - j.run_at)::float8, $9::float8[]) end as wait,
              case when c.from_status = 'RUNNING' and j.started_at <= c.at
                   then width_bucket(extract(epoch from c.at - j.started_at)::float8, $9::float8[]) end as run
         from changes c left join about j on j.id = c.job_id),
     groups as (
       select minute, queue, type, from_status, to_status, expired, wait, run, count(*)::int as count
         from told group by 1, 2, 3, 4, 5, 6, 7, 8),
     header as (select until, moved, ahead from log where until is not null),
     ending as (
       select count(*)::int as read, (array_agg(xid order by xid desc, seq desc))[1]::text as last_xid,
              (array_agg(seq order by xid desc, seq desc))[1]::text as last_seq
         from log where until is null)
     select * from header cross join ending left join groups on true`,
    [...readValues(position, { limit }), boundsSeconds],
  );
  const [first] = rows;
  if (first === undefined) throw new Error('a read of the event log told no snapshot');
  const { until, moved, ahead, read, last_xid, last_seq } = first;
  const last = last_xid === null || last_seq === null ? undefined : { xid: last_xid, seq: last_seq };
  const complete = read < limit;
  return {
    groups: rows.filter((row) => row.minute !== null),
    position: goOn(position, until, complete ? undefined : last),
    handled: read,
    complete,
    moved: moved || read > 0,
    ahead,
  };
}
