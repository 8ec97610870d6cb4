// How an event gets into the log: always in the statement, or the transaction, of what it tells.
import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';

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

/** Where a bulk statement's events come from. Every member is an SQL expression over `source`. */
export interface EventSelect {
  source: string;
  type: string;
  actor: string;
  from: string;
  to: string;
  /** Where the source has no `attempt` or `lease_id` of its own, or another one. */
  attempt?: string;
  lease?: string;
  data?: string;
}

/** `insert into … select`, to be used as a CTE beside the change that it tells. The rows of each follow those before it. */
export function insertEvents(schema: Schema, ...events: EventSelect[]): string {
  return `insert into ${schema}.events (type, job_id, target_id, from_status, to_status, attempt, lease_id, actor, data)
    ${events.map(selectEvents).join(' union all ')}`;
}

function selectEvents(e: EventSelect): string {
  return `select ${e.type}, id, target_id, ${e.from}, ${e.to}, ${e.attempt ?? 'attempt'}, ${e.lease ?? 'lease_id'}::uuid,
      ${e.actor}, ${e.data ?? 'null::jsonb'} from ${e.source}`;
}

export async function recordEvent(tx: Queryable, schema: Schema, event: NewEvent): Promise<void> {
  await tx.query(
    `insert into ${schema}.events (type, job_id, target_id, from_status, to_status, attempt, lease_id, actor, data)
     values ($1, $2, $3, $4, $5, $6, $7, $8, $9)`,
    [
      event.type,
      event.jobId ?? null,
      event.targetId ?? null,
      event.fromStatus ?? null,
      event.toStatus ?? null,
      event.attempt ?? null,
      event.leaseId ?? null,
      event.actor,
      event.data === undefined ? null : JSON.stringify(event.data),
    ],
  );
}
