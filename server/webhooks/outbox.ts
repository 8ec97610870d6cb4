// The webhooks follower: creates a delivery for every event for which a job or its tenant has a webhook. The event log
// is the outbox; deliveries are inserted in the transaction that advances the follower.

import type { Database, Queryable } from '../database/database.ts';
import { statement, tenant } from '../database/sql.ts';
import { type FollowResult, followSelection } from '../events/log/follower.ts';
import { recordEvent } from '../events/log/record.ts';
import { statusIn, succeededStatuses } from '../jobs/model/states.ts';
import { normalizeUrl } from '../kernel/fields.ts';
import { newId } from '../kernel/ids.ts';
import type { Tenant } from '../tenants/tenant.ts';

/** The ends and holds of jobs, and the events for people who are asked. */
const defaultEvents: readonly string[] = [
  'job.completed',
  'job.partial',
  'job.failed',
  'job.canceled',
  'job.paused',
  'job.resolved',
  'question.asked',
  'question.reminded',
  'question.escalated',
  'question.answered',
  'question.expired',
  'question.canceled',
];
// Events of deliveries are excluded, because deliveries about deliveries would never end.
const neverSent = new Set(['job.webhook_delivered', 'job.webhook_failed']);
const eventsPerStep = 2000;

interface WantedDelivery {
  xid: string;
  seq: string;
  url: string;
}

/** Selects new events with their URL: that of the job, otherwise that of the tenant. */
const wantedByEvents = `addressed as materialized (
    select id, webhook_url
      from ${tenant}.jobs
     where id = any(array(select job_id from log where job_id is not null))
       and webhook_url is not null
  ),
  wanted as (
    select l.xid, l.seq, coalesce(j.webhook_url, :tenantUrl::text) as url
      from log l
      left join addressed j on j.id = l.job_id
     where l.until is null
       and l.job_id is not null
       and coalesce(j.webhook_url, :tenantUrl::text) is not null
  )`;

export async function createDeliveries(
  db: Database,
  owner: Pick<Tenant, 'slug' | 'schema' | 'settings'>,
  limit = eventsPerStep,
): Promise<FollowResult> {
  const { schema, settings } = owner;
  const types = (settings.webhook?.events ?? defaultEvents).filter((type) => !neverSent.has(type));
  const selection = {
    name: 'webhooks',
    limit,
    types,
    ctes: wantedByEvents,
    from: 'wanted',
    parameters: { tenantUrl: settings.webhook?.url === undefined ? null : normalizeUrl(settings.webhook.url) },
  };
  return followSelection<WantedDelivery>(db, schema, selection, {
    handle: (tx, wanted) => insertDeliveries(tx, owner, wanted),
    // Recorded in the history of the job, where people look for a missing webhook.
    onSetAside: (tx, event, why) =>
      recordEvent(tx, schema, {
        type: 'job.webhook_failed',
        actor: 'webhooks',
        jobId: event.jobId ?? undefined,
        targetId: event.targetId ?? undefined,
        attempt: event.attempt ?? undefined,
        data: { event: event.type, event_id: event.seq, error: `no delivery could be created: ${why.error}` },
      }),
  });
}

/** Receivers do not get stack traces. */
function withoutTrace(error: string): string {
  return `case when jsonb_typeof(${error}) = 'object' then (${error}) - '{stack,cause,errors}'::text[] else ${error} end`;
}

function iso(column: string): string {
  return `to_char(${column} at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')`;
}

/** A receiver that answered 410 gets nothing more: its deliveries are stored as disabled. */
const insertStatement = statement(`
  with given as (
    select *
      from unnest(:ids::uuid[], :xids::xid8[], :seqs::bigint[], :urls::text[]) as g(id, xid, seq, url)
  ),
  closed as (
    select distinct url
      from ${tenant}.webhook_deliveries
     where state = 'disabled'
       and url = any(:urls::text[])
  ),
  made as (
    select g.id, e.job_id, e.xid, e.seq, e.type, g.url,
           c.url is not null as closed,
           now() as at,
           jsonb_build_object(
             'type', e.type,
             'timestamp', ${iso('e.at')},
             'data', jsonb_strip_nulls(jsonb_build_object(
               'tenant', :slug::text,
               'event_id', e.seq::text,
               'job_id', e.job_id,
               'job_type', j.type,
               'queue', j.queue,
               'target_id', e.target_id,
               'status', e.to_status,
               'attempt', e.attempt,
               'actor', e.actor,
               'author', j.author,
               'client_request_id', j.client_request_id,
               'error', ${withoutTrace(`e.data -> 'error'`)},
               'message', e.data -> 'message',
               'question', e.data -> 'question',
               'action', e.data -> 'action',
               'answered_by', e.data -> 'answered_by'))
               || case
                    when ${statusIn(succeededStatuses, 'e.to_status')}
                    then jsonb_build_object('result', j.result)
                    else '{}'
                  end
           ) as body
      from given g
      join ${tenant}.events e on e.xid = g.xid and e.seq = g.seq
      left join ${tenant}.jobs j on j.id = e.job_id
      left join closed c on c.url = g.url
  )
  insert into ${tenant}.webhook_deliveries
    (id, job_id, event_xid, event_seq, event_type, url, body, state, last_error, finished_at)
  select id, job_id, xid, seq, type, url, body,
         case when closed then 'disabled' else 'pending' end,
         case when closed then 'the receiver answered 410 before' end,
         case when closed then at end
    from made
  on conflict (event_xid, event_seq, url) do nothing`);

async function insertDeliveries(
  tx: Queryable,
  { slug, schema }: Pick<Tenant, 'slug' | 'schema'>,
  wanted: readonly WantedDelivery[],
): Promise<void> {
  await insertStatement.query(tx, schema, {
    ids: wanted.map(() => newId()),
    xids: wanted.map((one) => one.xid),
    seqs: wanted.map((one) => one.seq),
    urls: wanted.map((one) => one.url),
    slug,
  });
}
