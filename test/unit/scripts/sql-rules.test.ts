import { expect, test } from 'vitest';

const { violationsOf } = (await import(new URL('../../../scripts/check/sql-rules.mjs', import.meta.url).href)) as {
  violationsOf(sql: string): { rule: string; text: string }[];
};

test.each([
  [`update t.jobs set updated_at = clock_timestamp() where id = $1`, 'volatile'],
  [`delete from t.jobs where random() < 0.5`, 'volatile'],
  [`with a as (update t.jobs set x = 1 where pg_try_advisory_xact_lock(id) returning id) select 1`, 'volatile'],
  [`update t.jobs set x = 1 returning id, now()`, 'RETURNING'],
  [`with a as (update t.jobs set x = 1 returning jsonb_build_object('id', id) as o) select o from a`, 'RETURNING'],
  [`update t.jobs set finished_at = coalesce(finished_at, now())`, 'COALESCE'],
  [`update t.jobs set held_since = case when held then now() end`, 'CASE'],
  [`update t.leases set expires_at = now() + ttl_seconds * interval '1 second'`, 'arithmetic'],
  [`update t.leases set wait = started_at - now()`, 'arithmetic'],
  [`insert into t.events (type) values ('x')`, 'xid'],
  [`insert into t.a (id) values (1) on conflict (id) do update set at = now()`, 'excluded'],
  [`insert into t.followers (name, s) select $1, (select max(x) from t.a) on conflict do nothing`, 'FROM'],
  [`merge into t.jobs using x on true when matched then delete`, 'MERGE'],
  [`create trigger x after insert on t.jobs execute function f()`, 'triggers'],
  [`alter table t.jobs alter column payload set storage external`, 'STORAGE'],
])('%s', (sql, rule) => {
  expect(violationsOf(sql).map((violation) => violation.rule)).toEqual([expect.stringContaining(rule)]);
});

test.each([
  `update t.jobs set run_at = now() + $1 * interval '1 second', payload = payload || $2::jsonb where at < now() - interval '1 hour'`,
  `with n as (select id, coalesce(at, clock_timestamp()) as at from t.jobs for update) update t.jobs j set at = n.at from n where j.id = n.id`,
  `update t.jobs set x = 1 where id = any(array(select id from t.jobs where random() < 1)) returning id, x`,
  `with c as (update t.jobs set x = 1 returning id) select jsonb_build_object('id', id, 'now', now()) from c`,
  `select id from t.jobs where pg_try_advisory_xact_lock(1) for no key update skip locked`,
  `insert into t.events (xid, type) select x, 'clock_timestamp()' from a -- random()`,
  `insert into t.a (id) values (1) on conflict (id) do update set at = excluded.at`,
])('allowed: %s', (sql) => expect(violationsOf(sql)).toEqual([]));
