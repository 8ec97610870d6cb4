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

/** What the server says of the backend that waits for, or keeps, the lane's lock. */
async function states(where: string): Promise<string[]> {
  const rows = await context.db.query<{ state: string }>(
    `select state from pg_stat_activity where datname = current_database() and application_name = 'leasehold' and ${where}`,
  );
  return rows.map((row) => row.state);
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
  const jobs = [{ type: 'demo.echo', target_id: 'contested' }];
  const lost = frozen
    .request('POST', '/api/jobs/batch', { jobs: [{ ...jobs[0], type: 'work' }] })
    .catch(() => undefined);
  await eventually(async () => expect(await states(`wait_event_type = 'Lock'`)).toHaveLength(1));
  frozen.kill('SIGSTOP');
  // Its backend gets the lock, answers, and hears nothing more.
  await holder.query('rollback');
  await eventually(async () => expect(await states(`state = 'idle in transaction'`)).toHaveLength(1));
  const answers = await Promise.all(
    ['other', 'contested', 'brand-new', 'contested'].map((target) =>
      healthy.request('POST', `/api/targets/${target}/jobs`, { type: 'work' }),
    ),
  );
  expect(answers.map(({ status }) => status)).toEqual([201, 201, 201, 201]);
  expect(await states(`state = 'idle in transaction'`)).toEqual([]);
  frozen.kill('SIGCONT');
  // It finds its connection gone, and its request was not stored or was stored once by a new try.
  await lost;
  const late = await frozen.request('POST', '/api/targets/contested/jobs', { type: 'work' });
  expect(late.status).toBe(201);
}, 120_000);
