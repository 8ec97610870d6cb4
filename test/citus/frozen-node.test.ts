// Only in `npm run test:citus`: the node of some tenants stops to answer while their jobs run. Renewals and polls of the
// tenant of the other node go on meanwhile, and what goes through the coordinator does not wait for the node.
import { expect, onTestFinished, test } from 'vitest';
import { quoteSchema } from '../../server/database/identifiers.ts';
import type { Tenant } from '../../server/tenants/tenant.ts';
import { verifyTenant } from '../../server/verify/verify-tenant.ts';
import { defineJob } from '../../server/worker/handlers/define-job.ts';
import { startDaemon } from '../support/daemon/daemon.ts';
import { eventually } from '../support/eventually.ts';
import { citusCluster } from '../support/postgres/citus.ts';
import { addTenantOn, freezeNode, isSameNode, nodesOf, startCommand } from '../support/postgres/citus-nodes.ts';
import { useTenant } from '../support/postgres/database.ts';

const context = useTenant();

test.runIf(citusCluster() && startCommand())(
  'a node that does not answer stops only its tenants, also while many of their jobs run',
  { timeout: 400_000 },
  async () => {
    const { db } = context;
    const [node] = await nodesOf(db, context.tenant.schemaName);
    const frozen = [context.tenant];
    while (frozen.length < 4) frozen.push(await addTenantOn(db, (other) => isSameNode(other, node)));
    const healthy = await addTenantOn(db, (other) => !isSameNode(other, node));
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
    const daemon = await startDaemon(context, {
      handlers: [quick, long],
      env: { POLL_INTERVAL_SECONDS: '0.5', LEASE_SECONDS: '6' },
    });
    const add = async (tenant: Tenant, type: string, more: object = {}) => {
      const [enqueued] = await daemon.enqueue(tenant, [{ type, payload: {}, maxAttempts: 5, ...more }], 'test');
      return enqueued?.job.id as string;
    };
    const held = await add(healthy, 'test.long');
    for (const tenant of frozen) await add(tenant, 'test.long');
    await eventually(() => expect(started).toHaveLength(frozen.length + 1));
    const thaw = await freezeNode(node);
    onTestFinished(() => thaw());
    // Its lease would have ended twice meanwhile; jobs that become due are found by the poll.
    // More than the daemon has connections to the coordinator: it is not asked, because it would wait for the node.
    await eventually(async () => {
      const error = await add(context.tenant, 'test.quick').catch((reason: unknown) => reason);
      expect(error).toMatchObject({ message: expect.stringMatching(/does not answer/) });
    });
    const reads = Array.from({ length: 20 }, () => verifyTenant(daemon.db, quoteSchema(context.tenant.schemaName)));
    const refused = Promise.allSettled(reads).then((all) => all.every(({ status }) => status === 'rejected'));
    for (let n = 0; n < 4; n++) {
      const due = await add(healthy, 'test.quick', { runAt: new Date(Date.now() + 4_000).toISOString() });
      await eventually(() => expect(ended).toContain(due), { timeoutMs: 60_000 });
    }
    expect(await refused).toBe(true);
    thaw();
    release();
    await eventually(() => expect(ended).toContain(held));
    expect(started.filter((id) => id === held)).toHaveLength(1);
    for (const tenant of [healthy, ...frozen]) {
      await eventually(
        async () => {
          const rows = await db.query(`select distinct status from ${quoteSchema(tenant.schemaName)}.jobs`);
          expect(rows).toEqual([{ status: 'SUCCESS' }]);
        },
        { timeoutMs: 120_000 },
      );
    }
    await daemon.stop(0);
  },
);
