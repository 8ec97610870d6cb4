// The keys under which limits count a job. The first element of `limit_keys` names who may claim the job
// (`type:mail.send` for daemons, `queue:gpu` for remote workers). The others are one key per limit: its name, or name
// and value (`per-account:42`). Jobs with equal keys wait for the same limits, so if the first of them has to wait, all
// of them do. The function `limit_keys` of a tenant's schema computes the same keys for the SQL function `enqueue`;
// tests compare the three implementations. Also assigns keys to existing jobs.
import { createHash } from 'node:crypto';
import type { Database } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { statement, tenant } from '../../database/sql.ts';
import { retryConflicts } from '../../database/sql-errors.ts';
import { firstUuid } from '../../kernel/limits.ts';
import type { Limit } from '../../tenants/named-settings.ts';
import { statusIn, terminalStatuses } from '../model/states.ts';

// Longer values are hashed, so that the keys of a job fit into an index.
const maxKeyBytes = 64;

export interface KeyedJob {
  type: string;
  queue?: string | undefined;
  remote?: boolean | undefined;
  targetId?: string | null | undefined;
  author?: string | null | undefined;
  payload: unknown;
}

/** Returns undefined if no limit counts the job. */
export function limitKeysOf(limits: readonly Limit[], job: KeyedJob): string[] | undefined {
  if (limits.length === 0) return undefined;
  const queue = job.queue ?? 'default';
  const keys = limits
    .filter((limit) => (limit.type ?? job.type) === job.type && (limit.queue ?? queue) === queue)
    .map(({ name, key }) => (key === undefined ? name : `${name}:${bounded(countedValue(key, job))}`));
  return keys.length === 0 ? undefined : [claimantOf(job), ...keys];
}

/** Returns who may claim jobs of this type, or of this queue if it is for remote workers. */
export function claimantOf({ remote = false, type, queue }: Pick<KeyedJob, 'remote' | 'type' | 'queue'>): string {
  return remote ? `queue:${bounded(queue ?? 'default')}` : `type:${bounded(type)}`;
}

export function limitNameOf(key: string): string {
  const end = key.indexOf(':');
  return end === -1 ? key : key.slice(0, end);
}

/** Missing values, null, objects and lists become the empty string. */
function countedValue(key: string, job: KeyedJob): string {
  if (key === 'target_id') return job.targetId ?? '';
  if (key === 'author') return job.author ?? '';
  let value = job.payload;
  for (const field of key.split('.').slice(1)) {
    value = typeof value === 'object' && value !== null ? (value as Record<string, unknown>)[field] : undefined;
  }
  return value === undefined || value === null || typeof value === 'object' ? '' : String(value);
}

function bounded(text: string): string {
  return Buffer.byteLength(text) <= maxKeyBytes ? text : createHash('md5').update(text).digest('hex');
}

const boundedSql = (text: string) =>
  `case when octet_length(${text}) > ${maxKeyBytes} then md5(${text}) else ${text} end`;

/** SQL over `j`: the same keys, for the limits in `:limits` (see `limitsForSql`); null if no limit applies. */
export const limitKeysSql = `(
        select array[case when j.remote then 'queue:' || ${boundedSql('j.queue')} else 'type:' || ${boundedSql('j.type')} end]
               || array_agg(k.key order by k.name collate "C")
          from (
            select l.name,
                   case
                     when l.path is null then l.name
                     when l.path = '{target_id}' then l.name || ':' || ${boundedSql(`coalesce(j.target_id, '')`)}
                     when l.path = '{author}' then l.name || ':' || ${boundedSql(`coalesce(j.author, '')`)}
                     when jsonb_typeof(j.payload #> l.path[2:]) in ('object', 'array') then l.name || ':'
                     when jsonb_typeof(j.payload #> l.path[2:]) = 'number'
                       then l.name || ':' || ${boundedSql('trim_scale((j.payload #>> l.path[2:])::numeric)::text')}
                     else l.name || ':' || ${boundedSql(`coalesce(j.payload #>> l.path[2:], '')`)}
                   end as key
              from jsonb_to_recordset(:limits::jsonb) as l(name text, type text, queue text, path text[])
             where coalesce(l.type, j.type) = j.type
               and coalesce(l.queue, j.queue) = j.queue
          ) as k
        having count(*) > 0
      )`;

export function limitsForSql(limits: readonly Limit[]): string {
  return JSON.stringify(
    limits.map(({ name, type, queue, key }) => ({
      name,
      type,
      queue,
      path: key === undefined ? null : key.split('.'),
    })),
  );
}

const slice = 2000;

// A waiting job with new keys must pass the gate. A running job is counted from now on.
const assignStatement = statement(`
  with scanned as materialized (
    select j.id, j.status, j.limit_keys, ${limitKeysSql} as wanted
      from (select * from ${tenant}.jobs where id > :from order by id limit :slice) as j
     where not (${statusIn(terminalStatuses, 'j.status')})
  ),
  last as (
    select max(id::text) as id, count(*)::int as rows
      from (select id from ${tenant}.jobs where id > :from order by id limit :slice) as s
  ),
  changed as (
    update ${tenant}.jobs j
       set limit_keys = s.wanted,
           gated = s.status = 'QUEUED' and s.wanted is not null
      from scanned s
     where j.id = s.id
       and j.status = s.status
       and j.limit_keys is not distinct from s.limit_keys
       and s.limit_keys is distinct from s.wanted
    returning j.id
  )
  select (select count(*)::int from changed) as changed, last.id, last.rows from last`);

interface Slice {
  changed: number;
  id: string | null;
  rows: number;
}

/**
 * Assigns the current limits to existing jobs after limits were added, changed or removed. Every daemon that reads the
 * change does this, because jobs that it enqueued just before have the old keys. A second run finds nothing to change.
 * Returns the number of jobs whose keys have changed.
 */
export async function assignLimits(
  db: Database,
  schema: Schema,
  limits: readonly Limit[],
  signal?: AbortSignal,
): Promise<number> {
  let from = firstUuid;
  let changed = 0;
  while (signal?.aborted !== true) {
    const parameters = { limits: limitsForSql(limits), from, slice };
    const [done] = await retryConflicts(() => assignStatement.query<Slice>(db, schema, parameters));
    changed += done?.changed ?? 0;
    if (done?.id == null || done.rows < slice) return changed;
    from = done.id;
  }
  return changed;
}
