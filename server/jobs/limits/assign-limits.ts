// Assigns the current limits to existing jobs after limits were added, changed or removed. Every daemon that reads the
// change does this, because jobs that it enqueued just before have the old keys. A second run finds nothing to change.
import type { Database } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { statement, tenant } from '../../database/sql.ts';
import { retryConflicts } from '../../database/sql-errors.ts';
import type { Limit } from '../../tenants/limit.ts';
import { statusIn, terminalStatuses } from '../model/states.ts';
import { limitKeysSql, limitsForSql } from './limit-keys.ts';

const slice = 2000;
const firstUuid = '00000000-0000-0000-0000-000000000000';

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

/** Returns the number of jobs whose keys have changed. */
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
