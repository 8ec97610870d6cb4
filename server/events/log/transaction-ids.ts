// Transaction ids of the event log. Ids of two servers cannot be compared, but a tenant can be moved to another node or
// restored from a dump. So the log counts epochs: an id of the log is the server's transaction id with the epoch in its
// upper bits. It grows across servers, and a snapshot of a later epoch contains all of the earlier ones.
//
// The table `log_epochs` records the relation and the transaction that wrote the row of each epoch. A row that was
// copied has other system columns: then the log is on another server, and the next epoch has begun before anything was
// written there. `registerEpoch` only makes it permanent.
import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { epoch, fromEpochs, isCopied, logCte } from '../../database/log-epoch.ts';
import { statement, tenant } from '../../database/sql.ts';

/** The bits below the epoch: enough for 89 years of 100,000 transactions a second. */
const epochBits = 48n;

/** Converts a transaction id of the server to an id of the log. */
export function toLogXid(xid: string, epoch: number): string {
  return String((BigInt(epoch) << epochBits) + BigInt(xid));
}

/** The epoch of an id of the log. */
export function epochOf(logXid: string): number {
  return Number(BigInt(logXid) >> epochBits);
}

/**
 * SQL: a WITH clause for an INSERT of events, which takes their `xid` from its row `log`. In a cluster the tenant's
 * node counts the transactions, so the id is read together with a table of the tenant. The number of each event is
 * drawn there too (server/database/nodes/shard-names.ts).
 */
export function withLog(schema: string): string {
  return `${logCte} case when ${epoch} = 0 then pg_current_xact_id() else (${shifted('pg_current_xact_id()')})::text::xid8 end as xid
         ${fromEpochs(schema)})`;
}

/** SQL: the ids visible to this statement, as a pg_snapshot of the log. */
export function currentSnapshot(schema: string): string {
  const raw = 'pg_current_snapshot()';
  return `(select case when ${epoch} = 0 then ${raw} else concat(
         ${shifted(`pg_snapshot_xmin(${raw})`)}, ':', ${shifted(`pg_snapshot_xmax(${raw})`)}, ':',
         (select string_agg((${shifted('x')})::text, ',' order by x) from pg_snapshot_xip(${raw}) as x))::pg_snapshot end
       ${fromEpochs(schema)})`;
}

/**
 * SQL: the same snapshot, but only up to the last event, and not before `minXmax`. A reader may store it: a server that
 * crashes assigns the ids of rolled back transactions again, but none up to a committed one. Use it only before the
 * transaction itself has written events.
 */
export function durableSnapshot(schema: string, minXmax = `'1'::xid8`): string {
  return trimmedSnapshot(schema, currentSnapshot(schema), minXmax);
}

/** SQL: `durableSnapshot` of the given expression for the current snapshot. `condition` is over events `e` in it. */
export function trimmedSnapshot(schema: string, present: string, minXmax: string, condition = 'true'): string {
  return `(select concat(least(pg_snapshot_xmin(d.present), d.next), ':', d.next, ':',
         (select string_agg(x::text, ',' order by x) from pg_snapshot_xip(d.present) as x where x < d.next))::pg_snapshot
    from (select p.present, greatest(${minXmax}, (
            select (e.xid::text::bigint + 1)::text::xid8 from ${schema}.events e
             where pg_visible_in_snapshot(e.xid, p.present) and ${condition} order by e.xid desc, e.seq desc limit 1)) as next
            from (select ${present} as present) as p) as d)`;
}

function shifted(xid: string): string {
  return `(${epoch}::bigint << ${epochBits}) + ${xid}::text::bigint`;
}

/** SQL: true if the current epoch must be registered. */
export function isEpochUnregistered(schema: string): string {
  return `(select ${isCopied} from ${schema}.log_epochs l order by l.epoch desc limit 1)`;
}

const nextEpoch = statement(`
  select ${epoch} as epoch, l.tableoid::bigint::text as relation, pg_current_xact_id()::text as xid
    ${fromEpochs(tenant)}`);

// Two statements, because Citus cannot push down an INSERT … SELECT with a subquery.
const registration = statement(`
  insert into ${tenant}.log_epochs (epoch, relation, written_by)
  values (:epoch, :relation, :xid::text::xid8)
  on conflict (epoch) do nothing`);

/** Runs in a transaction, never within a savepoint, whose id its rows would carry. */
export async function registerEpoch(tx: Queryable, schema: Schema): Promise<void> {
  const [next] = await nextEpoch.query(tx, schema, {});
  if (next !== undefined) await registration.query(tx, schema, next);
}
