// A lease that ends, or disappears, although a job is owned under it. Postgres refuses that, so no trigger runs for the
// moment, as for an older daemon.
import type { TenantContext } from './postgres/database.ts';

export async function loseLease(
  { db, schema }: Pick<TenantContext, 'db' | 'schema'>,
  leaseId: string | null,
  how: 'deleted' | 'ended' = 'deleted',
): Promise<void> {
  const change =
    how === 'deleted'
      ? `delete from ${schema}.leases where id = $1`
      : `update ${schema}.leases set state = 'RELEASED', released_at = now() where id = $1`;
  await db.transaction(async (tx) => {
    // Beside a table of the tenant: in a cluster the first statement of a transaction chooses the node.
    await tx.query(`select set_config('session_replication_role', 'replica', true) from ${schema}.log_epochs`);
    await tx.query(change, [leaseId]);
  });
}
