// Claims at the same time: each takes what it wants, and none keeps others from what it does not want.
import { expect, onTestFinished, test } from 'vitest';
import { Database } from '../../../../server/database/database.ts';
import { claimJobs } from '../../../../server/jobs/claim/claim.ts';
import { createLogger } from '../../../../server/kernel/logger.ts';
import { addJobs } from '../../../support/jobs.ts';
import { staysOpen, useTenant } from '../../../support/postgres/database.ts';

const context = useTenant();

test('a claim of one type leaves the lanes of other types alone, also with an older statement', async () => {
  const { schema } = context;
  const db = new Database({ url: context.url, poolMax: 1, logger: createLogger('silent') });
  onTestFinished(() => db.close());
  const of = (type: string) => ({ owner: type, limit: 100, leaseSeconds: 60, types: [type] });
  for (let n = 0; n < 20; n++) await claimJobs(db, schema, of('mine'));
  await addJobs(context, [
    { type: 'mine', targetId: 'a' },
    { type: 'theirs', targetId: 'b' },
    { type: 'theirs', targetId: 'c' },
  ]);
  await db.transaction(async (tx) => {
    expect((await claimJobs(tx, schema, of('mine'))).jobs.map((job) => job.targetId)).toEqual(['a']);
    // It has not ended yet.
    expect((await claimJobs(context.db, schema, of('theirs'))).jobs.map((job) => job.targetId)).toEqual(['b', 'c']);
  }, staysOpen);
});
