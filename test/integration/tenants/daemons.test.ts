import { expect, test } from 'vitest';
import { adminWorkerRoutes } from '../../../server/http/routes/admin-workers.ts';
import { createLogger } from '../../../server/kernel/logger.ts';
import { DaemonRegistry, type DaemonState, listDaemons } from '../../../server/tenants/daemons.ts';
import { adminKey, useApp } from '../../support/app.ts';
import { useTenant } from '../../support/database.ts';

const context = useTenant();
const app = useApp(context, (deps) => ({ routes: [adminWorkerRoutes(deps)] }));

function create(id: string, state: DaemonState = { running: 0, draining: false, jobTypes: ['a'] }): DaemonRegistry {
  const logger = createLogger('silent');
  return new DaemonRegistry({ db: context.db, logger, id, version: '1.0.0', state: () => state, everyMs: 60_000 });
}

test('a daemon is listed while it lives, with what it does', async () => {
  const state = { running: 3, draining: false, jobTypes: ['a', 'b'] };
  const daemon = create('d1', state);
  await daemon.start();
  const seen = await app.request('GET', '/api/admin/workers', { key: adminKey });
  expect(seen.status).toBe(200);
  expect(seen.body.workers).toMatchObject([
    { id: 'd1', state: 'alive', running: 3, pid: process.pid, version: '1.0.0', job_types: ['a', 'b'] },
  ]);
  state.draining = true;
  await daemon.beat();
  expect(await listDaemons(context.db)).toMatchObject([{ id: 'd1', state: 'draining' }]);
  await context.db.query(`update leasehold.daemons set last_beat_at = now() - interval '1 minute'`);
  expect(await listDaemons(context.db)).toMatchObject([{ id: 'd1', state: 'lost' }]);
  await daemon.stop();
  expect(await listDaemons(context.db)).toEqual([]);
});

test('a restart under the same name takes the row over, and the old process cannot touch it', async () => {
  const old = create('d2');
  const young = create('d2', { running: 1, draining: false, jobTypes: [] });
  await old.start();
  await young.start();
  await old.beat();
  await old.stop();
  expect(await listDaemons(context.db)).toMatchObject([{ id: 'd2', incarnation: young.incarnation, running: 1 }]);
  await young.stop();
});

test('is for operators only', async () => {
  const key = await app.keyFor(context.tenant.id);
  expect((await app.request('GET', '/api/admin/workers', { key })).status).toBe(403);
});
