// Writes to the event log, always in the statement or the transaction of the change that the event describes. Every
// event is inserted by `insertEvents`.
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

/** The events of a statement. Every member but `source` is an SQL expression over it. */
export interface EventSelect {
  /** A FROM item, with its joins and conditions. One event is inserted for each of its rows. */
  source?: string;
  type: string;
  actor: string;
  /** The columns of the source by default: `id`, `target_id`, `attempt` and `lease_id`. */
  jobId?: string;
  targetId?: string;
  attempt?: string;
  lease?: string;
  /** The status of the job before and after the event; null by default. */
  from?: string;
  to?: string;
  data?: string;
}

/** Of events that are not about a job. */
export const withoutJob = { jobId: 'null::uuid', attempt: 'null::integer', lease: 'null::uuid' } as const;
/** Of events that leave a RUNNING job RUNNING. */
export const whileRunning = { from: `'RUNNING'`, to: `'RUNNING'` } as const;

const columns = 'type, job_id, target_id, from_status, to_status, attempt, lease_id, actor, data';

/**
 * Returns `insert into … select` for a CTE next to the change. The events of each select are numbered after those
 * before it.
 */
export function insertEvents(schema: Schema, ...events: EventSelect[]): string {
  return `${withLog(schema)}
    insert into ${schema}.events (xid, ${columns})
    ${events.map(selectEvents).join('\n    union all\n    ')}`;
}

function selectEvents(e: EventSelect): string {
  const { jobId = 'id', targetId = 'target_id', attempt = 'attempt', lease = 'lease_id' } = e;
  const { from = 'null', to = 'null', data = 'null::jsonb' } = e;
  return `select log.xid, ${e.type}, ${jobId}, ${targetId}, ${from}, ${to}, ${attempt}, ${lease}, ${e.actor}, ${data}
      from log ${e.source === undefined ? '' : `cross join ${e.source}`}`;
}

const insertEvent = statement(
  insertEvents(tenant, {
    type: ':type::text',
    jobId: ':jobId::uuid',
    targetId: ':targetId::text',
    attempt: ':attempt::integer',
    lease: ':leaseId::uuid',
    from: ':fromStatus::text',
    to: ':toStatus::text',
    actor: ':actor::text',
    data: ':data::jsonb',
  }),
);

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
