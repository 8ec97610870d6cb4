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
              parent_id, case type when 'unique' then payload ->> 'key' end as unique_key, result
         from ${schema}.jobs order by id`,
    );
    world.log.write(`jobs-${index}.jsonl`, jobs);
    const events = await db.query<EventRecord>(historyQuery(schema));
    world.log.write(`events-${index}.jsonl`, events);
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
