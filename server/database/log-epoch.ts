// The epoch of a tenant's event log: a number that grows when the tenant moves to another server. The table
// `log_epochs` records the relation and the transaction that wrote the row of each epoch; a row that was copied to
// another server has other system columns.

/** SQL over `log_epochs l`: the row was copied, so the next epoch has begun. */
export const isCopied = 'l.relation <> l.tableoid::bigint or l.written_by::xid <> l.xmin';

/** SQL over `log_epochs l`. */
export const epoch = `(l.epoch + (${isCopied})::int)`;

/** SQL: begins the CTE from which inserts of events take their transaction id; in a cluster with `firstNumber`. */
export const logCte = 'with log as materialized (select';

/** SQL over `log_epochs l`: what a cluster adds to a number of the tenant's node, so that numbers grow with epochs. */
export const firstNumber = `(${epoch} + 1)::bigint << 48`;

/** SQL: the epoch in which events are written now. */
export function presentEpoch(schema: string): string {
  return `select ${epoch} as epoch ${fromEpochs(schema)}`;
}

/** SQL: the last row of the table, as `l`. */
export function fromEpochs(schema: string): string {
  return `from ${schema}.log_epochs l order by l.epoch desc limit 1`;
}
