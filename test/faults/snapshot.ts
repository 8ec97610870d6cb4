// Writes what the checker needs of the database and of the daemons into the run's directory, after the faults.
import type { Queryable } from '../../server/database/database.ts';
import type { Schema } from '../../server/database/identifiers.ts';
import { verifyTenant } from '../../server/verify/verify-tenant.ts';
import { eventually } from '../support/eventually.ts';
import { brokenRows, type EventRow, historyQuery } from '../support/model/histories.ts';
import type { World } from './world.ts';

export interface JobRecord {
  id: string;
  type: string;
  status: string;
  target_id: string | null;
  attempt: number;
  client_request_id: string | null;
  lane_head: boolean;
  lane_rank: number | null;
  parent_id: string | null;
  /** Of a job of the type `unique`. */
  unique_key: string | null;
  result: { event?: string; answer?: number } | null;
  queue: string;
  /** What it has used, by unit. */
  usage: Record<string, number> | null;
}

/** What else a tenant has. */
export interface ResourceRecord {
  kind: string;
  /** Its name, its id, or its value if there is only one. */
  name: string;
  /** `made` until it was changed; the number of an answer, the state of an operation or a delivery. */
  state: string;
}

export interface EventRecord extends EventRow {
  seq: string;
  target_id: string | null;
  actor: string;
  /** Milliseconds since 1970, by the database's clock. */
  time: number;
}

export interface FoundByVerify {
  tenant: string;
  text: string;
}

export interface MetricsRecord {
  name: string;
  poolWaiters: number;
  residentBytes: number;
}

export async function takeSnapshot(world: World): Promise<void> {
  const { db } = world.context;
  for (const [index, { tenant, schema, stream }] of world.tenants.entries()) {
    const jobs = await db.query<JobRecord>(
      `select id, type, status, target_id, attempt, client_request_id, lane_head, lane_rank,
              parent_id, case type when 'unique' then payload ->> 'key' end as unique_key, result, queue, usage
         from ${schema}.jobs order by id`,
    );
    world.log.write(`jobs-${index}.jsonl`, jobs);
    const events = await db.query<EventRecord>(historyQuery(schema));
    world.log.write(`events-${index}.jsonl`, events);
    world.log.write(`resources-${index}.jsonl`, await db.query<ResourceRecord>(resourcesQuery(schema), [tenant.id]));
    const found = await violationsOf(db, schema);
    for (const text of found) world.log.append('verify.jsonl', { tenant: tenant.slug, text } satisfies FoundByVerify);
    // Events are sent within moments; the checker reports those that never were.
    const allSeen = () => {
      if (stream !== undefined && !events.every(({ seq }) => stream.seen.has(seq))) throw new Error('not yet');
    };
    await eventually(allSeen, { everyMs: 100 }).catch(() => {});
  }
  world.log.write(
    'tenants.jsonl',
    world.tenants.map(({ tenant, stream }) => ({ slug: tenant.slug, followed: stream !== undefined })),
  );
  for (const daemon of world.daemons) {
    world.log.write(
      `output-${daemon.name}.jsonl`,
      daemon.output.split('\n').flatMap((line) => (line === '' ? [] : [{ line }])),
    );
    const metrics = await readMetrics(daemon.url);
    if (metrics !== undefined) world.log.append('metrics.jsonl', { name: daemon.name, ...metrics });
  }
}

/**
 * Predicate over the delivery `d`: it was never sent although its turn has come. The deliveries of a job are sent in order, so
 * one that the receiver has refused delays those after it, for as long as its retries take.
 */
export function isUnsent(schema: Schema): string {
  return `d.state = 'pending' and d.attempts = 0 and not exists (
    select 1 from ${schema}.webhook_deliveries e
     where e.job_id = d.job_id and e.event_seq < d.event_seq and e.state = 'pending' and e.attempts > 0)`;
}

function resourcesQuery(schema: Schema): string {
  const changedIf = (condition: string) => `case when ${condition} then 'changed' else 'made' end`;
  return `
    select case when name like 'removed%' then 'removedSchedule' else 'schedule' end as kind, name,
           ${changedIf('paused_at is not null')} as state from ${schema}.schedules
    union all select 'key', name, ${changedIf('revoked_at is not null')} from leasehold.api_keys where tenant_id = $1
    union all select 'limit', jsonb_object_keys(settings -> 'limits'), 'made' from leasehold.tenants where id = $1
    union all select 'budget', jsonb_object_keys(settings -> 'budgets'), 'made' from leasehold.tenants where id = $1
    union all select 'target', id, ${changedIf('paused_at is not null')} from ${schema}.targets
    union all select 'setting', settings ->> 'max_queued', 'made' from leasehold.tenants where id = $1
    union all select 'secret', unnest(webhook_secrets), 'made' from leasehold.tenants where id = $1
    union all select 'link', id::text, 'made' from ${schema}.question_links
    union all select 'operation', id::text, status from ${schema}.operations
    union all select 'event', event_id, 'made' from ${schema}.received_events where event_id is not null
    union all select 'question', id::text, coalesce(answer ->> 'number', status) from ${schema}.questions
    union all select 'delivery', job_id || ' ' || event_seq,
                     case when state <> 'pending' then state when ${isUnsent(schema)} then 'unsent' else 'pending' end
      from ${schema}.webhook_deliveries d
    union all select 'usage', unit, used::text from ${schema}.usage_days where scope = ''`;
}

async function violationsOf(db: Queryable, schema: Schema): Promise<string[]> {
  const { violations } = await verifyTenant(db as Parameters<typeof verifyTenant>[0], schema);
  return [
    ...violations.map(({ kind, jobId, targetId, detail }) => `${kind} ${jobId ?? targetId ?? ''}: ${detail}`),
    ...(await brokenRows(db, schema)),
  ];
}

/** Once nobody waits for a connection, or as it is when that lasts. */
async function readMetrics(url: string): Promise<Omit<MetricsRecord, 'name'> | undefined> {
  let last: Omit<MetricsRecord, 'name'> | undefined;
  const isQuiet = async () => {
    last = await readMetricsOnce(url);
    if (last.poolWaiters > 0) throw new Error('requests wait for a connection');
  };
  await eventually(isQuiet, { everyMs: 100 }).catch(() => {});
  return last;
}

async function readMetricsOnce(url: string): Promise<Omit<MetricsRecord, 'name'>> {
  const response = await fetch(`${url}/metrics`, { signal: AbortSignal.timeout(5_000) });
  if (!response.ok) throw new Error(`no metrics: ${response.status}`);
  const text = await response.text();
  const waiting = [...text.matchAll(/^leasehold_database_connections\{[^}]*state="waiting"[^}]*\} (\d+)/gm)];
  const [, resident = 'NaN'] = /^process_resident_memory_bytes (\S+)/m.exec(text) ?? [];
  return {
    poolWaiters: waiting.reduce((sum, [, count]) => sum + Number(count), 0),
    residentBytes: Number(resident),
  };
}
