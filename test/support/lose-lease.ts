// A lease that ends, or disappears, although a job is owned under it. Postgres refuses that, so the constraint is off for
// the moment, as for an older daemon or on a cluster, which has none.
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
    await tx.query(`alter table ${schema}.leases disable trigger user`);
    await tx.query(change, [leaseId]);
    await tx.query(`alter table ${schema}.leases enable trigger user`);
  });
}
