// Writes to the event log, always in the statement or the transaction of the change that the event describes.
import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { statement, tenant } from '../../database/sql.ts';
import { withLog } from './transaction-ids.ts';

export interface NewEvent {
  type: string;
  actor: string;
  jobId?: string | undefined;
  targetId?: string | undefined;
  fromStatus?: string | undefined;
  toStatus?: string | undefined;
  attempt?: number | undefined;
  leaseId?: string | undefined;
  data?: object | undefined;
}

/** The events of a bulk statement. Every member is an SQL expression over `source`. */
export interface EventSelect {
  source: string;
  type: string;
  actor: string;
  from: string;
  to: string;
  /** Set if the source has no `attempt` or `lease_id` (a uuid), or a different one. */
  attempt?: string;
  lease?: string;
  data?: string;
}

const columns = 'type, job_id, target_id, from_status, to_status, attempt, lease_id, actor, data';

/**
 * Returns `insert into … select` for a CTE next to the change. The events of each select are numbered after those
 * before it.
 */
export function insertEvents(schema: Schema, ...events: EventSelect[]): string {
  return `${withLog(schema)} insert into ${schema}.events (xid, ${columns})
    ${events.map(selectEvents).join('\n    union all\n    ')}`;
}

function selectEvents(e: EventSelect): string {
  return `select log.xid, ${e.type}, id, target_id, ${e.from}, ${e.to}, ${e.attempt ?? 'attempt'}, ${e.lease ?? 'lease_id'}, ${e.actor}, ${e.data ?? 'null::jsonb'}
      from log cross join ${e.source}`;
}

const insertEvent = statement(`
  ${withLog(tenant)}
  insert into ${tenant}.events (xid, ${columns})
  select log.xid, :type::text, :jobId::uuid, :targetId::text, :fromStatus::text, :toStatus::text,
         :attempt::integer, :leaseId::uuid, :actor::text, :data::jsonb
    from log`);

export async function recordEvent(tx: Queryable, schema: Schema, event: NewEvent): Promise<void> {
  await insertEvent.query(tx, schema, {
    type: event.type,
    jobId: event.jobId ?? null,
    targetId: event.targetId ?? null,
    fromStatus: event.fromStatus ?? null,
    toStatus: event.toStatus ?? null,
    attempt: event.attempt ?? null,
    leaseId: event.leaseId ?? null,
    actor: event.actor,
    data: event.data === undefined ? null : JSON.stringify(event.data),
  });
}
