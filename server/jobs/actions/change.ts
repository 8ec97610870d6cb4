// The frame of every change that a person makes to a job that nobody runs: lock its lane, change
// the row under its guard, tell it, let the lane move on. Zero rows: the job was changed meanwhile.
import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { insertEvents } from '../../events/log/record.ts';
import { lockTargets, promote } from '../lanes/lane.ts';
import type { Job } from '../model/job.ts';
import { become, guard, type TransitionName, transitions } from '../model/states.ts';

export interface Change {
  transition: TransitionName;
  actor: string;
  /** Further assignments, each an SQL expression over `b` (the row before, with `target_paused`) and $4 on. */
  set: string;
  values?: unknown[];
  /** A stricter guard than the transition's own, over `j`. */
  extraGuard?: string;
  data?: object | undefined;
}

/** True if the change happened. */
export async function changeJob(
  tx: Queryable,
  schema: Schema,
  job: Pick<Job, 'id' | 'targetId'>,
  change: Change,
): Promise<boolean> {
  const targets = job.targetId === null ? [] : [job.targetId];
  await lockTargets(tx, schema, targets);
  const rows = await tx.query(
    `with b as (
       select j.id, j.status as before_status, j.lane_head, j.lane_rank, j.target_id is null as free, j.on_error, j.attempt,
              t.paused_at is not null as target_paused,
              j.expires_at + (now() - j.held_since) as expires_later
         from ${schema}.jobs j left join ${schema}.targets t on t.id = j.target_id
        where j.id = $1 and ${guard(change.transition, 'j')} ${change.extraGuard === undefined ? '' : `and ${change.extraGuard}`}
          for update of j),
     changed as (
       update ${schema}.jobs j set ${become(change.transition)}, ${change.set}, updated_at = now()
         from b where j.id = b.id
       returning j.id, j.target_id, j.attempt, j.lease_id, b.before_status),
     told as (${insertEvents(schema, {
       source: 'changed',
       type: `'${transitions[change.transition].event}'`,
       actor: '$2',
       from: 'before_status',
       to: `'${transitions[change.transition].to}'`,
       data: '$3::jsonb',
     })})
     select id from changed`,
    [job.id, change.actor, change.data === undefined ? null : JSON.stringify(change.data), ...(change.values ?? [])],
  );
  if (rows.length === 0) return false;
  await promote(tx, schema, targets);
  return true;
}
