// Only in `npm run test:citus`: the coordinator is killed while jobs run. Their leases are renewed on the nodes, jobs of
// known tenants are enqueued, claimed and finished there, and after the start of the coordinator everything goes on.
import pg from 'pg';
import { expect, test } from 'vitest';
import { quoteSchema } from '../../server/database/identifiers.ts';
import type { Tenant } from '../../server/tenants/tenant.ts';
import { verifyTenant } from '../../server/verify/verify-tenant.ts';
import { defineJob } from '../../server/worker/handlers/define-job.ts';
import { startDaemon } from '../support/daemon/daemon.ts';
import { eventually } from '../support/eventually.ts';
import { citusCluster } from '../support/postgres/citus.ts';
import {
  addTenantOn,
  type CitusNode,
  isSameNode,
  killNode,
  nodeAt,
  nodesOf,
  startCommand,
} from '../support/postgres/citus-nodes.ts';
import { useTenant } from '../support/postgres/database.ts';

const context = useTenant();

test.runIf(citusCluster() && startCommand())(
  'without the coordinator no lease is lost, and jobs of known tenants are enqueued and run',
  { timeout: 400_000 },
  async () => {
    const { db } = context;
    const [node] = await nodesOf(db, context.tenant.schemaName);
    const tenants = [context.tenant, await addTenantOn(db, (other) => !isSameNode(other, node))];
    const homes = new Map<Tenant, CitusNode>();
    for (const tenant of tenants) homes.set(tenant, (await nodesOf(db, tenant.schemaName))[0]);
    const started: string[] = [];
    const ended: string[] = [];
    let release: () => void = () => {};
    const released = new Promise<void>((resolve) => {
      release = resolve;
    });
    const quick = defineJob({ type: 'test.quick', run: ({ job }) => void ended.push(job.id) });
    const long = defineJob({
      type: 'test.long',
      run: async ({ job, signal }) => {
        started.push(job.id);
        await released;
        if (!signal.aborted) ended.push(job.id);
      },
    });
    const leaseSeconds = 6;
    const daemon = await startDaemon(context, {
      handlers: [quick, long],
      env: { POLL_INTERVAL_SECONDS: '0.5', LEASE_SECONDS: String(leaseSeconds) },
    });
    const add = async (tenant: Tenant, type: string) => {
      const [enqueued] = await daemon.enqueue(tenant, [{ type, payload: {}, maxAttempts: 5 }], 'test');
      return enqueued?.job.id as string;
    };
    const held: string[] = [];
    for (const tenant of tenants) held.push(await add(tenant, 'test.long'));
    await eventually(() => expect(started).toHaveLength(tenants.length));
    const expiresAt = (tenant: Tenant) => leaseExpiry(homes.get(tenant) as CitusNode, tenant);
    const before = await Promise.all(tenants.map(expiresAt));
    const restart = await killNode(nodeAt(citusCluster()?.coordinator as string));
    for (const tenant of tenants) {
      const id = await add(tenant, 'test.quick');
      await eventually(() => expect(ended).toContain(id));
    }
    for (const [i, tenant] of tenants.entries()) {
      await eventually(
        async () => expect(await expiresAt(tenant)).toBeGreaterThan((before[i] ?? 0) + 3 * leaseSeconds),
        {
          timeoutMs: 60_000,
        },
      );
    }
    await restart();
    release();
    await eventually(() => expect(ended).toEqual(expect.arrayContaining(held)));
    expect(started).toHaveLength(tenants.length);
    for (const tenant of tenants) {
      const id = await add(tenant, 'test.quick');
      await eventually(() => expect(ended).toContain(id), { timeoutMs: 60_000 });
      await eventually(
        async () => {
          const rows = await db.query(`select distinct status from ${quoteSchema(tenant.schemaName)}.jobs`);
          expect(rows).toEqual([{ status: 'SUCCESS' }]);
        },
        { timeoutMs: 60_000 },
      );
      expect((await verifyTenant(db, quoteSchema(tenant.schemaName))).violations).toEqual([]);
    }
    await daemon.stop(0);
  },
);

/** Of the lease that lasts longest, in seconds, as the tenant's node has it. */
async function leaseExpiry({ host, port }: CitusNode, tenant: Tenant): Promise<number> {
  const url = Object.assign(new URL(context.url), { hostname: host, port: String(port) });
  const client = new pg.Client(url.href);
  await client.connect();
  try {
    const { rows } = await client.query<{ at: number }>(
      `select extract(epoch from max(expires_at))::float8 as at from ${quoteSchema(tenant.schemaName)}.leases where state = 'ACTIVE'`,
    );
    return rows[0]?.at ?? 0;
  } finally {
    await client.end();
  }
}
