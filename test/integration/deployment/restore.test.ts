// A backup that was made while jobs ran, restored on another server: the daemons go on there, as after a crash.
import { expect, test } from 'vitest';
import { Database } from '../../../server/database/database.ts';
import { createLogger } from '../../../server/kernel/logger.ts';
import { verifyTenant } from '../../../server/verify/verify-tenant.ts';
import { defineJob } from '../../../server/worker/handlers/define-job.ts';
import { startDaemon } from '../../support/daemon/daemon.ts';
import { eventually } from '../../support/eventually.ts';
import { addJobs, reread } from '../../support/jobs.ts';
import { startPrivateServer } from '../../support/postgres/private-server.ts';
import { restoreBackup } from '../../support/postgres/standby.ts';

test('a restored backup runs: interrupted jobs are recovered, in the order of their lane', async () => {
  const primary = await startPrivateServer();
  let isRestored = false;
  const finished: string[] = [];
  const until = defineJob({
    type: 'until.restored',
    async run({ job, sleep }) {
      while (!isRestored) await sleep(20);
      finished.push(job.id);
    },
  });
  const env = { LEASE_SECONDS: '120' };
  const before = await startDaemon(primary, { handlers: [until], env });
  const given = { type: 'until.restored', targetId: 'machine-1', maxAttempts: 10 };
  const jobs = await addJobs(primary, [given, given]);
  await eventually(async () => expect(await reread(primary, jobs[0]!)).toMatchObject({ status: 'RUNNING' }));

  const { url } = await restoreBackup(primary);
  await before.stop(0);
  await primary.halt();
  isRestored = true;
  const db = new Database({ url, poolMax: 2, logger: createLogger('silent') });
  const restored = { ...primary, db, url };
  // The daemons that held them are gone: what time would do.
  await db.query(`update ${primary.schema}.leases set expires_at = now() - interval '1 hour' where state = 'ACTIVE'`);
  const after = await startDaemon(restored, { handlers: [until], env });
  await eventually(async () => {
    for (const job of jobs) expect((await reread(restored, job)).status).toBe('SUCCESS');
  });
  // The attempt that ran when the backup was made is lost, like that of a worker that died.
  expect((await reread(restored, jobs[0]!)).attempt).toBe(2);
  expect((await reread(restored, jobs[1]!)).attempt).toBe(1);
  expect(finished).toEqual(jobs.map((job) => job.id));
  await after.stop(0);
  expect((await verifyTenant(db, primary.schema)).violations).toEqual([]);
  await db.close();
});
