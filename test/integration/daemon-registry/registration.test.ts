import { expect, test } from 'vitest';
import { listDaemons, readLiveDaemons } from '../../../server/daemon-registry/live-daemons.ts';
import { DaemonRegistration } from '../../../server/daemon-registry/registration.ts';
import { adminWorkerRoutes } from '../../../server/http/resources/health.ts';
import { createLogger } from '../../../server/kernel/logger.ts';
import { eventually } from '../../support/eventually.ts';
import { adminKey, useApp } from '../../support/http/app.ts';
import { useTenant } from '../../support/postgres/database.ts';

const context = useTenant();
const app = useApp(context, (deps) => ({ routes: [adminWorkerRoutes(deps)] }));

interface State {
  running: number;
  draining: boolean;
  types: string[];
}

function create(workerId: string, state: State = { running: 0, draining: false, types: ['a'] }): DaemonRegistration {
  return new DaemonRegistration({
    db: context.db,
    logger: createLogger('silent'),
    workerId,
    version: '1.0.0',
    types: () => state.types,
    running: () => state.running,
    draining: () => state.draining,
  });
}

test('a live daemon is listed with its running jobs', async () => {
  const state = { running: 3, draining: false, types: ['a', 'b'] };
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
  // It beats by itself as well.
  await eventually(async () => {
    await context.db.query(`update leasehold.daemons set last_beat_at = now() - interval '1 minute'`);
    expect(await listDaemons(context.db)).toMatchObject([{ id: 'd1', state: 'lost' }]);
  });
  await daemon.stop();
  expect(await listDaemons(context.db)).toEqual([]);
});

test('a restart under the same name takes the row over, and the old process cannot touch it', async () => {
  const old = create('d2');
  await old.start();
  const [before] = await listDaemons(context.db);
  const young = create('d2', { running: 1, draining: false, types: [] });
  await young.start();
  await old.beat();
  await old.stop();
  const [after] = await listDaemons(context.db);
  expect(after).toMatchObject({ id: 'd2', running: 1 });
  expect(after?.incarnation).not.toBe(before?.incarnation);
  await young.stop();
});

test('a restart whose clock went back takes the row over and stays alive', async () => {
  const old = create('d3');
  await old.start();
  // Where the process before it ran with a clock ahead: an id made from that time sorts after every id of today.
  await context.db.query(`update leasehold.daemons set incarnation = 'ffffffff-ffff-7fff-bfff-ffffffffffff'`);
  await old.stop();
  const young = create('d3', { running: 2, draining: false, types: ['b'] });
  await young.start();
  // The process before it is gone; only the new one beats.
  await context.db.query(`update leasehold.daemons set last_beat_at = now() - interval '20 seconds'`);
  await young.beat();
  const [row] = await listDaemons(context.db);
  expect(row).toMatchObject({ id: 'd3', running: 2, job_types: ['b'] });
  expect(row?.seconds_since_beat).toBeLessThan(10);
  expect((await readLiveDaemons(context.db)).map((daemon) => daemon.jobTypes)).toEqual([['b']]);
  await young.stop();
});

test('a process takes its row back from a silent one of the same name', async () => {
  const first = create('d4', { running: 1, draining: false, types: [] });
  await first.start();
  const second = create('d4', { running: 2, draining: false, types: [] });
  await second.start();
  await first.beat();
  expect(await listDaemons(context.db)).toMatchObject([{ id: 'd4', running: 2 }]);
  // The second one beats by itself as well.
  await eventually(async () => {
    await context.db.query(`update leasehold.daemons set last_beat_at = now() - interval '1 minute'`);
    await first.beat();
    expect(await listDaemons(context.db)).toMatchObject([{ id: 'd4', running: 1, state: 'alive' }]);
  });
  await second.stop();
  await first.stop();
});

test('the list is for operators only', async () => {
  const key = await app.keyFor(context.tenant.id);
  expect((await app.request('GET', '/api/admin/workers', { key })).status).toBe(403);
});
