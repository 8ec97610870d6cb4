// What somebody with write access to the database may do to the log and its seals, and what `verify` says about it.
// Each test has a tenant of its own with a sealed log, and an anchor that was noted before the attack.
import { describe, expect, it } from 'vitest';
import { currentSnapshot, withLog } from '../../../server/events/log/transaction-ids.ts';
import { pruneEvents } from '../../../server/events/seals/prune.ts';
import { appendSeal } from '../../../server/events/seals/seal-chain.ts';
import { openTransaction, writeEvent } from '../../support/events.ts';
import { useDatabase } from '../../support/postgres/database.ts';
import { kinds, named, sealedScene } from '../../support/sealed-scene.ts';
import { ageSeals, rebuildChain, sealAll } from '../../support/seals.ts';

const database = useDatabase();
const scene = () => sealedScene(database.db);

describe('erased history', () => {
  it('finds seals that were marked as pruned, with their events deleted', async () => {
    const { sql, schema, verify, anchor } = await scene();
    await sql(`delete from ${schema}.events where xid in (
      select split_part(unnest(event_keys), ':', 1)::xid8 from ${schema}.event_seals where number <= 2)`);
    await sql(`update ${schema}.event_seals set pruned_at = now(), pruned_by = 0, event_keys = '{}', event_hashes = '', job_hashes = null
      where number <= 2`);
    for (const found of [await verify(), await verify(anchor)]) {
      expect(named(found).slice(0, 2)).toEqual([
        ['prune_unrecorded', '1'],
        ['prune_unrecorded', '2'],
      ]);
    }
  });

  it('finds them also when retention prunes the rest later', async () => {
    const where = await scene();
    await ageSeals(where, 100);
    await where.sql(`update ${where.schema}.event_seals set pruned_at = now(), pruned_by = 9 where number = 2`);
    await pruneEvents(where.db, where.schema, { olderThanSeconds: 86_400 * 90 });
    expect(named(await where.verify())).toContainEqual(['prune_unrecorded', '2']);
  });

  it('finds a seal that is presented as one of an earlier version', async () => {
    const { sql, schema, verify } = await scene();
    await sql(`update ${schema}.event_seals set record = null, job_hashes = null where number = 1`);
    expect(named(await verify())).toContainEqual(['seal_altered', '1']);
    await sql(`update ${schema}.event_seals set pruned_at = now(), pruned_by = 0 where number = 1`);
    expect(named(await verify())).toContainEqual(['seal_altered', '1']);
  });

  it('finds a forged record of a removal: too recent, or adopted', async () => {
    for (const age of [0, 86_400 * 90, null]) {
      const { db, sql, schema, verify, anchor } = await scene();
      const [now] = await sql(`select (extract(epoch from now()) * 1000000)::bigint as now`);
      const end = await appendSeal(db, schema, anchor, {
        kind: 'prune',
        sealed_at: String(now?.now),
        seals: [['1', '2']],
        events: 6,
        older_than_seconds: age,
      });
      await sql(`update ${schema}.followers set state = $1 where name = 'seals'`, [JSON.stringify(end)]);
      await sql(`delete from ${schema}.events where xid in (
        select split_part(unnest(event_keys), ':', 1)::xid8 from ${schema}.event_seals where number <= 2)`);
      await sql(
        `update ${schema}.event_seals set pruned_at = now(), pruned_by = 4, event_keys = '{}', event_hashes = '' where number <= 2`,
      );
      const expected = age === null ? 'prune_unrecorded' : 'prune_too_early';
      expect(kinds(await verify(anchor)), String(age)).toContain(expected);
    }
  });

  it('finds an edited time of a seal, with which retention would remove it early', async () => {
    const where = await scene();
    const { db, sql, schema, verify } = where;
    await sql(`update ${schema}.event_seals set sealed_at = sealed_at - interval '100 days' where number = 1`);
    expect(named(await verify())).toEqual([['seal_altered', '1']]);
    await pruneEvents(db, schema, { olderThanSeconds: 86_400 * 90 });
    expect(kinds(await verify())).toEqual(['prune_too_early', 'seal_altered']);
    await sql(`update ${schema}.event_seals set sealed_at = 'infinity' where number = 2`);
    expect(named(await verify())).toContainEqual(['seal_altered', '2']);
  });

  it('finds, by the anchor, a chain that was cut off and grew again', async () => {
    const where = await scene();
    const { sql, schema, verify, anchor } = where;
    const [kept] = await sql(`select number, encode(hash, 'hex') as hash, record::json ->> 'until' as until
      from ${schema}.event_seals where number = 2`);
    await sql(`delete from ${schema}.events where xid in (
      select split_part(unnest(event_keys), ':', 1)::xid8 from ${schema}.event_seals where number = 3)`);
    await sql(`delete from ${schema}.jobs where id = $1`, [where.waiting.id]);
    await sql(`delete from ${schema}.event_seals where number = 3`);
    expect(named(await verify())).toEqual([['seal_missing', '3']]);
    await sql(`update ${schema}.followers set state = $1, snapshot = $2 where name = 'seals'`, [
      JSON.stringify({ number: kept?.number, hash: kept?.hash }),
      kept?.until,
    ]);
    // Nothing inside the database remembers it.
    expect((await verify()).violations).toEqual([]);
    expect(named(await verify(anchor))).toEqual([['seal_missing', '3']]);
    await writeEvent(where.db, schema);
    await sealAll(where);
    expect((await verify()).violations).toEqual([]);
    expect(named(await verify(anchor))).toEqual([['seal_altered', '3']]);
  });

  it('finds, by the anchor, a chain that was rebuilt from some point on', async () => {
    const where = await scene();
    await rebuildChain(where, (record, number) =>
      number === 2 ? { ...record, sealed_at: '1700000000000000' } : record,
    );
    expect((await where.verify()).violations).toEqual([]);
    expect(named(await where.verify(where.anchor))).toEqual([['seal_altered', '3']]);
  });
});

describe('forged events', () => {
  const forge = `insert into SCHEMA.events (xid, seq, type, actor) overriding system value values ($1, 999999, 'forged', 'user:eve')`;

  /** SQL: an id of the log that follows that of this transaction. It names the tenant: in a cluster its node has the ids. */
  const xidAfter = (schema: string, distance: number) =>
    `${withLog(schema)} select (log.xid::text::bigint + ${distance})::text as xid from log`;

  it('finds an old event that was sealed after the position of the sealer was moved back', async () => {
    for (const position of ['1:1:', 'from']) {
      const where = await scene();
      const { sql, schema, verify, anchor } = where;
      const [first] = await sql(`select split_part(event_keys[1], ':', 1) as xid, record::json ->> 'from' as from
        from ${schema}.event_seals where number = 2`);
      await sql(forge.replace('SCHEMA', schema), [first?.xid]);
      const event = `${first?.xid}:999999`;
      await sql(`update ${schema}.followers set snapshot = $1 where name = 'seals'`, [
        position === 'from' ? first?.from : position,
      ]);
      expect(kinds(await verify())).toContain('position_moved');
      await sealAll(where);
      const found = await verify(anchor);
      expect(named(found).sort(), position).toEqual([
        ['event_inserted', event],
        ['position_moved', '4'],
      ]);
      await writeEvent(where.db, schema);
      await sealAll(where);
      expect(named(await verify(anchor))).toContainEqual(['event_inserted', event]);
    }
  });

  it('finds events that were never sealed because the position was moved forward', async () => {
    const where = await scene();
    const { sql, schema, verify } = where;
    await writeEvent(where.db, schema);
    await sql(`update ${schema}.followers set snapshot = ${currentSnapshot(schema)}::text where name = 'seals'`);
    await sealAll(where);
    expect(kinds(await verify())).toEqual(['event_inserted']);
  });

  it('finds an event whose transaction is in the future, or in progress', async () => {
    const where = await scene();
    const { sql, schema, verify } = where;
    const [next] = await sql(xidAfter(schema, 100_000));
    await sql(forge.replace('SCHEMA', schema), [next?.xid]);
    await sealAll(where);
    const found = await verify();
    expect(named(found)).toEqual([['event_future', `${next?.xid}:999999`]]);
    expect(found.seals.unsealedEvents).toBe(0);
    await sql(`delete from ${schema}.events where seq = 999999`);
    const open = await openTransaction(where);
    const [own] = await open.tx.query<{ xid: string }>(xidAfter(schema, 0));
    await sql(forge.replace('SCHEMA', schema), [own?.xid]);
    expect(named(await verify())).toEqual([['event_future', `${own?.xid}:999999`]]);
    await open.rollback();
  });

  it('finds an event that was written for a later transaction, also after that transaction has ended', async () => {
    const where = await scene();
    const { sql, schema, verify } = where;
    const [later] = await sql(xidAfter(schema, 20));
    await sql(forge.replace('SCHEMA', schema), [later?.xid]);
    for (let ended = false; !ended; ) {
      await sql(xidAfter(schema, 0));
      const [snapshot] = await sql(
        `select (pg_snapshot_xmin(${currentSnapshot(schema)}) > $1::text::xid8)::text as ended`,
        [later?.xid],
      );
      ended = snapshot?.ended === 'true';
    }
    await sealAll(where);
    const found = await verify();
    expect(named(found)).toContainEqual(['event_future', `${later?.xid}:999999`]);
    expect(found.seals.unsealedEvents).toBe(0);
  });

  it('finds an event that was moved to another job, and two that were swapped', async () => {
    const { sql, schema, verify, done, resolved } = await scene();
    const [event] = await sql(`select xid || ':' || seq as key from ${schema}.events where type = 'job.completed'`);
    await sql(`update ${schema}.events set job_id = $1 where type = 'job.completed'`, [resolved.id]);
    expect(named(await verify())).toContainEqual(['event_altered', event?.key]);
    await sql(`update ${schema}.events set job_id = $1 where type = 'job.completed'`, [done.id]);
    expect((await verify()).violations).toEqual([]);
    // Their numbers are exchanged: each row says what it said, in another place.
    await sql(
      `create table ${schema}.swapped as select * from ${schema}.events where type in ('job.started', 'job.completed')`,
    );
    await sql(`delete from ${schema}.events where type in ('job.started', 'job.completed')`);
    await sql(`insert into ${schema}.events overriding system value
      select o.xid, o.seq, s.at, s.type, s.job_id, s.target_id, s.from_status, s.to_status, s.attempt, s.lease_id, s.actor, s.data
        from ${schema}.swapped s join ${schema}.swapped o on o.type <> s.type`);
    expect(named(await verify()).filter(([kind]) => kind === 'event_altered')).toHaveLength(2);
  });

  it('finds keys and hashes that were moved within a seal or between seals', async () => {
    const { sql, schema, verify } = await scene();
    await sql(`update ${schema}.event_seals set event_keys = array_append(event_keys, 'x') where number = 1`);
    expect(named(await verify())).toContainEqual(['seal_altered', '1']);
    await sql(
      `update ${schema}.event_seals set event_keys = event_keys[2:3] || event_keys[1], job_hashes = '' where number = 1`,
    );
    expect(named(await verify())).toContainEqual(['seal_altered', '1']);
    await sql(`update ${schema}.event_seals set number = 5 - number where number in (2, 3)`).catch(() =>
      sql(`update ${schema}.event_seals set number = number + 10 where number = 2`),
    );
    expect(kinds(await verify())).toContain('seal_missing');
  });

  it('finds an edited or removed state of the sealer', async () => {
    const { sql, schema, verify } = await scene();
    await sql(`update ${schema}.followers set state = state || '{"hash": "00"}' where name = 'seals'`);
    expect(named(await verify())).toEqual([['seal_altered', '3']]);
    await sql(`update ${schema}.followers set snapshot = 'x', state = 'null' where name = 'seals'`);
    expect(kinds(await verify())).toEqual(['position_moved', 'seal_missing']);
    await sql(`delete from ${schema}.followers where name = 'seals'`);
    expect(named(await verify())).toEqual([['seal_altered', '3']]);
  });
});
