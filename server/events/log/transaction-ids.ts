// Transaction ids of the event log. Ids of two servers cannot be compared, but a tenant can be moved to another node or
// restored from a dump, so the log counts epochs: an id of the log is the server's transaction id with the epoch in its
// upper bits. It grows across servers, and a snapshot of a later epoch contains all of the earlier ones.
//
// The table `log_epochs` records on which relation, by which transaction, the row of each epoch was written. A row that
// was copied has other system columns: then the log is on another server, and the next epoch has begun, before anything
// has been written there. `registerEpoch` only makes it permanent.
import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { statement, tenant } from '../../database/sql.ts';

/** Below the epoch: enough for 89 years of 100,000 transactions a second. */
const epochBits = 48n;

/** A transaction id of the server, as the log has it. */
export function toLogXid(xid: string, epoch: number): string {
  return String((BigInt(epoch) << epochBits) + BigInt(xid));
}

const isCopied = 'l.relation <> l.tableoid::bigint or l.written_by::xid <> l.xmin';

/** SQL: the epoch in which events are written now. */
export function presentEpoch(schema: string): string {
  return `select l.epoch + (${isCopied})::int as epoch from ${schema}.log_epochs l order by l.epoch desc limit 1`;
}

/** SQL: the id of this transaction in the log. Taken from a table of the tenant: in a cluster its node counts transactions. */
export function currentTransaction(schema: string): string {
  return `(select case when p.epoch = 0 then pg_current_xact_id() else (${shifted('pg_current_xact_id()')})::text::xid8 end
       from (${presentEpoch(schema)}) p)`;
}

/** SQL: the ids visible to this statement, as a pg_snapshot of the log. */
export function currentSnapshot(schema: string): string {
  const raw = 'pg_current_snapshot()';
  return `(select case when p.epoch = 0 then ${raw} else concat(
         ${shifted(`pg_snapshot_xmin(${raw})`)}, ':', ${shifted(`pg_snapshot_xmax(${raw})`)}, ':',
         (select string_agg((${shifted('x')})::text, ',' order by x) from pg_snapshot_xip(${raw}) as x))::pg_snapshot end
       from (${presentEpoch(schema)}) p)`;
}

function shifted(xid: string): string {
  return `(p.epoch::bigint << ${epochBits}) + ${xid}::text::bigint`;
}

/** SQL: whether the present epoch still has to be registered. */
export function isEpochUnregistered(schema: string): string {
  return `(select ${isCopied} from ${schema}.log_epochs l order by l.epoch desc limit 1)`;
}

const registration = statement(`
  insert into ${tenant}.log_epochs (epoch, relation, written_by)
  select l.epoch + 1, l.relation, l.xid
    from (select l.epoch, l.tableoid::bigint as relation, pg_current_xact_id() as xid, ${isCopied} as is_copied
            from ${tenant}.log_epochs l
           order by l.epoch desc
           limit 1) as l
   where l.is_copied
  on conflict (epoch) do nothing`);

/** Never within a savepoint: its rows carry the id of the savepoint. */
export async function registerEpoch(tx: Queryable, schema: Schema): Promise<void> {
  await registration.query(tx, schema, {});
}
