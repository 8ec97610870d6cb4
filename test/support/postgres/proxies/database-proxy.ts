// A fault proxy before the database of a test. In a cluster it is also before the nodes, to which the statements of
// tenants go: until the end of the test, the coordinator gives its addresses for those of the nodes.
import { onTestFinished } from 'vitest';
import { citusCluster } from '../citus.ts';
import type { CitusNode } from '../citus-nodes.ts';
import type { TenantContext } from '../database.ts';
import { FaultProxy } from './fault-proxy.ts';

/** `url`: the database's URL through the proxy. Connections that the test already has go past it. */
export async function startDatabaseProxy(
  context: Pick<TenantContext, 'db' | 'schema' | 'url'>,
): Promise<{ proxy: FaultProxy; url: string }> {
  const url = new URL(context.url);
  const proxy = await FaultProxy.start(Number(url.port || 5432), url.hostname);
  onTestFinished(() => proxy.stop());
  url.host = `127.0.0.1:${proxy.port}`;
  if (citusCluster()) await placeBeforeNodes(proxy, context);
  return { proxy, url: url.href };
}

async function placeBeforeNodes(
  proxy: FaultProxy,
  { db, schema }: Pick<TenantContext, 'db' | 'schema'>,
): Promise<void> {
  // From now on these connections know the node of the tenant.
  await db.query(`select from ${schema}.log_epochs`);
  const nodes = await db.query<CitusNode & { id: number }>(
    'select nodeid as id, nodename as host, nodeport as port from pg_dist_node where groupid > 0',
  );
  const setAddress = (id: number, host: string, port: number) =>
    db.query('update pg_dist_node set nodename = $2, nodeport = $3 where nodeid = $1', [id, host, port]);
  onTestFinished(async () => {
    for (const { id, host, port } of nodes) await setAddress(id, host, port);
  });
  for (const { id, host, port } of nodes) await setAddress(id, '127.0.0.1', await proxy.listen(port, host));
}
