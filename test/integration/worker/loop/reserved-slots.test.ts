// Tenants whose jobs last for hours, beside tenants with one job each.
import { expect, test } from 'vitest';
import { startDaemon } from '../../../support/daemon/daemon.ts';
import { eventually } from '../../../support/eventually.ts';
import { reread } from '../../../support/jobs.ts';
import { addTenant, useTenant } from '../../../support/postgres/database.ts';

const context = useTenant();

test('the first jobs of tenants start although long jobs of other tenants could use every slot', async () => {
  const { db } = context;
  const others = [await addTenant(db, 'one'), await addTenant(db, 'two'), await addTenant(db, 'three')];
  const second = await addTenant(db, 'second');
  const daemon = await startDaemon(context, {
    env: { WORKER_CONCURRENCY: '16', TENANT_CONCURRENCY: '12', WORKER_RESERVED_SHARE: '0.1875' },
  });
  const long = Array.from({ length: 20 }, () => ({ type: 'demo.sleep', payload: { seconds: 3600 } }));
  await daemon.enqueue(context.tenant, long, 'test');
  await daemon.enqueue(second.tenant, long, 'test');
  // All but the reserve: 16 slots less one for each of three tenants that run nothing.
  await eventually(() => expect(daemon.workers.slotsUsed).toBe(13));
  for (const other of others) {
    const [enqueued] = await daemon.enqueue(other.tenant, [{ type: 'demo.echo', payload: {} }], 'test');
    await eventually(async () => {
      expect((await reread({ db, ...other }, enqueued!.job)).status).toBe('SUCCESS');
    });
  }
  // And all three at once, with long jobs of their own: one each.
  for (const other of others) await daemon.enqueue(other.tenant, long, 'test');
  await eventually(() => expect(daemon.workers.slotsUsed).toBe(16));
  // What was claimed ahead of its slot goes back within a moment.
  await eventually(async () => {
    const running = await Promise.all(
      others.map(({ schema }) => db.query(`select id from ${schema}.jobs where status = 'RUNNING'`)),
    );
    expect(running.map((rows) => rows.length)).toEqual([1, 1, 1]);
  });
});
