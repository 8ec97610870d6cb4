// Chains that began under an earlier version, daemons of both versions beside each other, restored backups, and
// retention: all of them honest, so `verify` must find nothing.
import { randomBytes } from 'node:crypto';
import { expect, it } from 'vitest';
import { pruneEvents } from '../../../server/events/seals/prune.ts';
import { sealEvents } from '../../../server/events/seals/seal.ts';
import type { Job } from '../../../server/jobs/model/job.ts';
import { deleteStaleJobs } from '../../../server/jobs/retention/delete-stale.ts';
import { type Verification, verifyTenant } from '../../../server/verify/verify-tenant.ts';
import { writeEvent } from '../../support/events.ts';
import { addJob, addJobs, claim, finish } from '../../support/jobs.ts';
import { addTenant, type TenantContext, useDatabase } from '../../support/postgres/database.ts';
import { ageSeals, rebuildChain, sealAll } from '../../support/seals.ts';

const database = useDatabase();
type Where = Pick<TenantContext, 'db' | 'schema'>;
const quarter = 86_400 * 90;

/** One finished job in each of so many seals. */
async function newLog(seals: number): Promise<Where> {
  const { db } = database;
  const { schema } = await addTenant(db, `t${randomBytes(4).toString('hex')}`);
  await addSeals({ db, schema }, seals);
  return { db, schema };
}

async function addSeals(where: Where, seals: number): Promise<void> {
  for (let i = 0; i < seals; i++) {
    await addJob(where, { payload: { i } });
    await finish(where, (await claim(where)).jobs[0] as Job);
    await sealAll(where);
  }
}

/** Seals with a number below are as an earlier version wrote them. */
const asBefore = (where: Where, below: number) =>
  rebuildChain(where, (record, number) => (number < below ? undefined : record));

const verify = ({ db, schema }: Where, anchor?: { number: string; hash: string }) =>
  verifyTenant(db, schema, anchor && { anchor });
const named = (found: Verification) => found.violations.map((f) => [f.kind, f.event ?? f.seal ?? f.jobId]);

/** What the retention of an earlier version did. */
async function pruneAsBefore({ db, schema }: Where, number: number, values = 'pruned_at = now(), pruned_by = 0') {
  await db.query(
    `with pruned as (
       update ${schema}.event_seals set ${values}, event_keys = '{}', event_hashes = '' where number = $1),
     keys as (select unnest(event_keys) as key from ${schema}.event_seals where number = $1)
     delete from ${schema}.events where xid || ':' || seq in (select key from keys)`,
    [number],
  );
}

it('proves a chain of an earlier version, and continues with it', async () => {
  const where = await newLog(3);
  await asBefore(where, 9);
  const before = await verify(where);
  expect(before).toMatchObject({ violations: [], seals: { seals: 3, formerSeals: 3, comparedJobs: 0 } });
  expect(before.seals.end?.hash).toHaveLength(64);
  await addSeals(where, 2);
  const after = await verify(where, before.seals.end);
  expect(after).toMatchObject({ violations: [], seals: { seals: 5, formerSeals: 3, comparedJobs: 4 } });
  expect(after.seals.end?.hash).toHaveLength(66);
});

it('accepts blocks that an earlier version pruned before the upgrade, and refuses blocks that are marked as pruned later', async () => {
  const where = await newLog(4);
  await asBefore(where, 9);
  const anchor = (await verify(where)).seals.end;
  await pruneAsBefore(where, 1);
  await pruneAsBefore(where, 2);
  expect(await verify(where, anchor)).toMatchObject({ violations: [], seals: { prunedSeals: 2 } });
  await addSeals(where, 1);
  const upgraded = await verify(where, anchor);
  expect(upgraded).toMatchObject({ violations: [], seals: { seals: 3, prunedSeals: 2, end: { number: '6' } } });
  await pruneAsBefore(where, 3);
  expect(named(await verify(where, anchor))).toContainEqual(['prune_unrecorded', '3']);
});

it('accepts seals of both versions in turn, and refuses a removal without a record', async () => {
  const where = await newLog(2);
  await asBefore(where, 3);
  await addSeals(where, 1);
  await addSeals(where, 2);
  await rebuildChain(where, (record, number) => (number % 2 === 0 ? undefined : record));
  expect(await verify(where)).toMatchObject({ violations: [], seals: { seals: 5, formerSeals: 3 } });
  await expect(pruneAsBefore(where, 1, 'pruned_at = now()')).rejects.toMatchObject({ code: '23514' });
  await where.db.query(
    `update ${where.schema}.event_seals set sealed_at = now() - interval '100 days' where number <= 2`,
  );
  await rebuildChain(where, (record) => ({ ...record, sealed_at: '1700000000000000' }));
  await pruneEvents(where.db, where.schema, { olderThanSeconds: quarter });
  await addSeals(where, 1);
  expect((await verify(where)).violations).toEqual([]);
});

it('accepts what retention removed, in several rounds, with the anchors noted before and between', async () => {
  const where = await newLog(3);
  const { db, schema } = where;
  await ageSeals(where, 100);
  const first = (await verify(where)).seals.end;
  await addSeals(where, 2);
  expect((await pruneEvents(db, schema, { olderThanSeconds: quarter })).events).toBeGreaterThan(0);
  expect(await pruneEvents(db, schema, { olderThanSeconds: quarter })).toEqual({ events: 0, complete: true });
  const between = await verify(where, first);
  expect(between).toMatchObject({ violations: [], seals: { prunedSeals: 3, seals: 2, lastPrune: { seal: '6' } } });
  await ageSeals(where, 200);
  await addSeals(where, 1);
  await pruneEvents(db, schema, { olderThanSeconds: quarter });
  expect(await verify(where)).toMatchObject({
    violations: [],
    seals: { prunedSeals: 5, seals: 1, lastPrune: { seal: '8' } },
  });
});

it('accepts jobs that retention deleted, also before their events were sealed', async () => {
  const where = await newLog(1);
  const { db, schema } = where;
  await addJob(where);
  await finish(where, (await claim(where)).jobs[0] as Job);
  await db.query(`update ${schema}.jobs set stale_at = now()`);
  expect(await deleteStaleJobs(db, schema, { staleForSeconds: 0, actor: 'sweeper:test', limit: 10 })).toBe(2);
  await sealAll(where);
  expect(await verify(where)).toMatchObject({ violations: [], seals: { comparedJobs: 0, unsealedEvents: 0 } });
});

it('continues with a log that was restored into a cluster with lower transaction ids, and says where', async () => {
  const where = await newLog(2);
  const { db, schema } = where;
  const [row] = await db.query<{ next: string }>(
    `select (max(xid::text::bigint) + 1000000)::text as next from ${schema}.events`,
  );
  const future = `${row?.next}:${row?.next}:`;
  await rebuildChain(where, (record, number) =>
    record.kind === 'events' && number === 2 ? { ...record, until: future } : record,
  );
  await db.query(`update ${schema}.followers set snapshot = $1 where name = 'seals'`, [future]);
  expect((await verify(where)).violations).toEqual([]);
  await sealAll(where);
  await writeEvent(db, schema);
  await sealAll(where);
  expect(await verify(where)).toMatchObject({ violations: [], seals: { restarts: ['3'], unsealedEvents: 0 } });
});

it('ends a block early when its jobs have many bytes, and seals the rest in the next', async () => {
  const where = await newLog(1);
  const { db, schema } = where;
  const payload = { text: 'x'.repeat(1000) };
  await addJobs(
    where,
    Array.from({ length: 5 }, () => ({ payload })),
  );
  const sealed = [];
  for (const maxBytes of [2500, 0, 1_000_000]) sealed.push(await sealEvents(db, schema, { maxBytes }));
  expect(sealed).toMatchObject([
    { handled: 2, complete: false },
    { handled: 1, complete: false },
    { handled: 2, complete: true },
  ]);
  expect(await verify(where)).toMatchObject({
    violations: [],
    seals: { seals: 4, unsealedEvents: 0, comparedJobs: 7 },
  });
});

it('compares events and jobs with hashes of the first version too', async () => {
  const where = await newLog(3);
  const { db, schema } = where;
  await rebuildChain(where, (record, number) =>
    record.kind === 'events' && number < 3 ? { ...record, job_hash: 1 } : record,
  );
  expect(await verify(where)).toMatchObject({ violations: [], seals: { seals: 3, formerSeals: 0, comparedJobs: 6 } });
  const [job] = await db.query<{ id: string }>(
    `update ${schema}.jobs set payload = '{"i":9}' where payload = '{"i":0}' returning id`,
  );
  expect((await verify(where)).violations).toMatchObject([{ kind: 'job_altered', jobId: job?.id }]);
  await db.query(`update ${schema}.events set actor = 'other' where job_id = $1 and type = 'job.started'`, [job?.id]);
  expect((await verify(where)).violations.map(({ kind }) => kind).sort()).toEqual(['event_altered', 'job_altered']);
});

it('seals events and jobs whose times are infinite', async () => {
  const where = await newLog(1);
  const { db, schema } = where;
  const job = await addJob(where);
  await db.query(`update ${schema}.jobs set created_at = '294000-01-01' where id = $1`, [job.id]);
  await db.query(`insert into ${schema}.events (type, actor, at) values ('test.happened', 'test', 'infinity')`);
  await sealAll(where);
  expect(await verify(where)).toMatchObject({ violations: [], seals: { sealedEvents: 5, comparedJobs: 3 } });
  await db.query(`update ${schema}.events set at = now() where at = 'infinity'`);
  expect((await verify(where)).violations).toMatchObject([{ kind: 'event_altered' }]);
});
