// A daemon that stands still in the middle of a transaction holds the locks of its lanes. The server takes them away
// within seconds, and the healthy daemons serve the tenant meanwhile.
import pg from 'pg';
import { expect, onTestFinished, test } from 'vitest';
import { startProcess } from '../support/daemon/process.ts';
import { eventually } from '../support/eventually.ts';
import { addJobs } from '../support/jobs.ts';
import { useTenant } from '../support/postgres/database.ts';

const context = useTenant();
const noWork = { WORKER_CONCURRENCY: '0' };

/** The backends of daemons of which the server says this. */
async function backends(where: string): Promise<number[]> {
  const rows = await context.db.query<{ pid: number }>(
    `select pid from pg_stat_activity where datname = current_database() and application_name = 'leasehold' and ${where}`,
  );
  return rows.map((row) => row.pid);
}

test('while a daemon is frozen in mid-transaction, another one acknowledges enqueues of the same lane and of others', async () => {
  const frozen = await startProcess(context, { env: noWork });
  const healthy = await startProcess(context, { env: noWork });
  await addJobs(context, [{ targetId: 'contested' }, { targetId: 'other' }]);
  const holder = new pg.Client(context.url);
  await holder.connect();
  onTestFinished(() => holder.end());
  await holder.query('begin');
  await holder.query(`select id from ${context.schema}.targets where id = 'contested' for update`);
  // Several jobs of a lane with keys take more than one round trip: the lock is held until the daemon sends the rest.
  const jobs = ['first', 'second'].map((key) => ({ type: 'work', target_id: 'contested', client_request_id: key }));
  const lost = frozen.request('POST', '/api/jobs/batch', { jobs }).catch(() => undefined);
  const pid = await eventually(async () => {
    const waiting = await backends(`wait_event_type = 'Lock'`);
    expect(waiting).toHaveLength(1);
    return waiting[0];
  });
  frozen.kill('SIGSTOP');
  // Its backend gets the lock, answers, and receives nothing more.
  await holder.query('rollback');
  const answers = await Promise.all(
    ['other', 'contested', 'brand-new', 'contested'].map((target) =>
      healthy.request('POST', `/api/targets/${target}/jobs`, { type: 'work' }),
    ),
  );
  expect(answers.map(({ status }) => status)).toEqual([201, 201, 201, 201]);
  await eventually(async () => expect(await backends(`pid = ${pid}`)).toEqual([]));
  frozen.kill('SIGCONT');
  // It finds its connection gone, and its request was not stored or was stored once by a new try.
  await lost;
  const late = await frozen.request('POST', '/api/targets/contested/jobs', { type: 'work' });
  expect(late.status).toBe(201);
});
