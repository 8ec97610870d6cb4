// The lanes of new jobs, for an insert that is sent together with the statement that locks them: it reads the lanes
// itself. A job whose lane is empty becomes its head, and others wait in line.
import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { statement, tenant } from '../../database/sql.ts';
import { becomesHead, dueOutOfLine, type LaneCounts } from './lane.ts';

const takeOrInsert = statement(`
  insert into ${tenant}.targets as t (id, lane_seq)
  select id, count
    from unnest(:targetIds::text[], :counts::int[]) as u(id, count)
   order by id
  on conflict (id) do update
     set lane_seq = t.lane_seq + excluded.lane_seq`);

/**
 * Locks the lanes in id order, inserts new targets, and takes `counts` numbers of each, in one statement. The next
 * statement must promote, as `laneStates` shows: a job may have waited in a lane before its target had a row.
 */
export async function takeNumbersForInsert(tx: Queryable, schema: Schema, counts: LaneCounts): Promise<void> {
  if (counts.size === 0) return;
  const targetIds = [...counts.keys()].sort();
  await takeOrInsert.query(tx, schema, { targetIds, counts: targetIds.map((id) => counts.get(id)) }, 'prepared');
}

/**
 * SQL of CTEs over the locked lanes `:targetIds`. `lanes` has the last number of each lane and whether it is free:
 * unpaused and empty. `has_due` means that due jobs must join it before a new one. `promoted` ends a lane's lack of a
 * head.
 */
export const laneStates = `lanes as materialized (
    select t.id,
           t.lane_seq,
           s.headless and n.id is null as free,
           n.id as next_id,
           exists (select 1 from ${tenant}.jobs d where d.target_id = t.id and ${dueOutOfLine('d.')}) as has_due
      from ${tenant}.targets t
     cross join lateral (
             select t.paused_at is null
                and not exists (select 1 from ${tenant}.jobs h where h.target_id = t.id and h.lane_head) as headless
           ) s
      left join lateral (
             select j.id
               from ${tenant}.jobs j
              where s.headless
                and j.target_id = t.id
                and j.lane_rank is not null
              order by j.lane_rank, j.lane_seq
              limit 1
           ) n on true
     where t.id = any(:targetIds::text[])
  ),
  promoted as (
    update ${tenant}.jobs
       set ${becomesHead}
     where id = any(array(select next_id from lanes where next_id is not null))
  )`;
