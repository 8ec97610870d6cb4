// Edits of job rows that `verify` finds by the hashes in the seals.
import { describe, expect, it } from 'vitest';
import type { Job } from '../../../server/jobs/model/job.ts';
import { claim, finish } from '../../support/jobs.ts';
import { useDatabase } from '../../support/postgres/database.ts';
import { kinds, sealedScene } from '../../support/sealed-scene.ts';
import { sealAll } from '../../support/seals.ts';

const database = useDatabase();
const scene = () => sealedScene(database.db);

describe('edited jobs', () => {
  it.each([
    [`payload = '{"amount": 500}'`],
    [`author = 'eve'`],
    [`target_id = 'other'`],
    [`type = 'demo.other'`],
    [`created_at = created_at - interval '1 microsecond'`],
    [`created_at = '294000-01-01'`],
  ])('names a job whose enqueued values were edited: %s', async (edit) => {
    const { sql, schema, verify, done, waiting } = await scene();
    for (const job of [waiting, done]) {
      await sql(`update ${schema}.jobs set ${edit} where id = $1`, [job.id]);
      const { violations } = await verify();
      expect(violations, edit).toContainEqual(expect.objectContaining({ kind: 'job_altered', jobId: job.id }));
    }
  });

  it.each([
    [`result = '{"paid": 500}'`],
    ['result = null'],
    [`error = '{"code": "X", "message": ""}'`],
    [`finished_at = finished_at + interval '1 day'`],
  ])('names a job whose outcome was edited: %s', async (edit) => {
    const { sql, schema, verify, done, resolved } = await scene();
    await sql(`update ${schema}.jobs set ${edit} where id = any($1)`, [[done.id, resolved.id]]);
    const { violations } = await verify();
    expect(violations.map((violation) => [violation.kind, violation.jobId]).sort()).toEqual(
      [done.id, resolved.id].map((id) => ['job_altered', id]).sort(),
    );
  });

  it('names jobs that were swapped', async () => {
    const { sql, schema, verify, done, resolved } = await scene();
    await sql(
      `update ${schema}.jobs j set result = o.result from ${schema}.jobs o
        where j.id = any($1) and o.id = any($1) and o.id <> j.id`,
      [[done.id, resolved.id]],
    );
    expect(kinds(await verify())).toEqual(['job_altered']);
  });

  it('accepts changes that the product itself makes to a job that ended or waits', async () => {
    const where = await scene();
    const { sql, schema, verify, done } = where;
    await sql(`update ${schema}.jobs set webhook_sent = true, stale_at = now(), updated_at = now() where id = $1`, [
      done.id,
    ]);
    const { jobs } = await claim(where);
    await finish(where, jobs[0] as Job, { kind: 'fail', error: { code: 'X', message: 'no' } });
    await sealAll(where);
    expect((await verify()).violations).toEqual([]);
  });
});
