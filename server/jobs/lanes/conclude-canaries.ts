// Concludes canaries. A canary is the one job that may run while its target is paused. If it succeeds, the pause ends.
// Otherwise the lane stays held, by the job itself or by the pause. The target is paused until the canary is concluded,
// so a crash at any time leaves the lane stopped. actions/start-canary.ts starts a canary.
import type { Database, Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { statement, tenant } from '../../database/sql.ts';
import { insertEvents, withoutJob } from '../../events/log/record.ts';
import { heldStatuses, statusIn, succeededStatuses, terminalStatuses } from '../model/states.ts';
import { lockTargets, promote } from './lane.ts';

/**
 * Predicate over the canary `j`: it has ended, or a person must act on it. A canary that a drain paused is still a
 * canary, because it continues when it is resumed.
 */
const isDecided = `(${statusIn(terminalStatuses, 'j.status')}
      or j.status = 'ERROR'
      or j.status = 'PAUSED' and j.hold ->> 'kind' is distinct from 'drain')`;

const conclude = statement(`
  with ended as (
    select t.id,
           j.id as job_id,
           j.status,
           t.paused_by as author,
           ${statusIn(succeededStatuses, 'j.status')} as succeeded,
           ${statusIn(succeededStatuses, 'j.status')}
             or (t.canary_paused and ${statusIn(heldStatuses, 'j.status')} and j.lane_head) as resumes,
           case when t.canary_paused then 'Canary job ' || j.id || ' ended as ' || j.status else t.pause_reason end as reason
      from ${tenant}.targets t
      join ${tenant}.jobs j on j.id = t.canary_job_id
     where t.id = any(:targetIds::text[])
       and ${isDecided}
  ),
  changed as (
    update ${tenant}.targets t
       set canary_job_id = null,
           canary_paused = false,
           paused_at = case when e.resumes then null else t.paused_at end,
           paused_by = case when e.resumes then null else t.paused_by end,
           paused_until = case when e.resumes then null else t.paused_until end,
           pause_reason = case when e.resumes then null else e.reason end
      from ended e
     where t.id = e.id
    returning t.id, e.job_id, e.status, e.author, e.succeeded, e.resumes
  ),
  recorded as (
    ${insertEvents(tenant, {
      ...withoutJob,
      source: 'changed',
      type: `case when succeeded then 'target.resumed' else 'target.canary_failed' end`,
      targetId: 'id',
      actor: ':actor',
      data: `jsonb_build_object('canary_job_id', job_id, 'job_status', status, 'author', author, 'paused', not resumes)`,
    })}
  )
  select id
    from changed
   where succeeded`);

/** Concludes the canaries of these targets, which the caller has locked. Returns the lanes that are free again. */
export async function concludeCanaries(
  tx: Queryable,
  schema: Schema,
  targetIds: readonly string[],
  actor: string,
): Promise<string[]> {
  if (targetIds.length === 0) return [];
  const rows = await conclude.query<{ id: string }>(tx, schema, { targetIds, actor });
  return rows.map((row) => row.id);
}

/** SQL: true if a canary has ended and was not concluded because its daemon died. */
export function canaryOverdueSql(schema: string): string {
  return `exists (select 1 from ${schema}.targets t join ${schema}.jobs j on j.id = t.canary_job_id
                   where t.canary_job_id is not null and ${isDecided})`;
}

const overdueStatement = statement(`
  select t.id
    from ${tenant}.targets t
    join ${tenant}.jobs j on j.id = t.canary_job_id
   where t.canary_job_id is not null
     and ${isDecided}
   order by t.id
   limit :limit`);

/** Used by the sweeper. Returns the number of concluded canaries. */
export async function concludeOverdueCanaries(
  db: Database,
  schema: Schema,
  actor: string,
  limit = 100,
): Promise<number> {
  const overdue = await overdueStatement.query<{ id: string }>(db, schema, { limit });
  for (const { id } of overdue) {
    await db.transaction(async (tx) => {
      await lockTargets(tx, schema, [id]);
      await promote(tx, schema, await concludeCanaries(tx, schema, [id], actor));
    });
  }
  return overdue.length;
}
