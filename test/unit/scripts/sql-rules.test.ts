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
  [`update t.jobs set result = to_jsonb(progress)`, 'immutable'],
  [`update t.jobs set message = concat(type, queue)`, 'immutable'],
  [`update t.jobs set attempt = lastval()`, 'volatile'],
  [
    `update t.jobs set x = 1 where id = any(array(select id from t.jobs where random() < 1)) returning id, x`,
    'volatile',
  ],
  [`update t.jobs set run_at = case when x then localtimestamp end`, 'now()'],
  [`update t.jobs set run_at = run_at + interval '1 day'`, 'time column'],
  [`delete from t.jobs where finished_at < now() - (days * interval '1 day')`, 'arithmetic'],
  [`delete from t.jobs using (select now() as t) n where at < n.t - (days || ' d')::interval`, 'cast'],
  [`update t.jobs set x = 1 returning run_at::text`, 'RETURNING'],
  [`insert into t.a (id) values (1) returning row_to_json(a)`, 'RETURNING'],
  [`insert into t.a (id) values ((select max(x) from t.b))`, 'VALUES'],
  [`insert into t.a (id) values (1) on conflict (id) do update set at = clock_timestamp()`, 'excluded'],
  [`insert into t.a (id) values (1) on conflict (id) do update set at = excluded.at where a.at < now()`, 'excluded'],
  [`insert into t.a (id) values (1) on conflict (id) do update set s = jsonb_build_object('a', a.at)`, 'excluded'],
  [`insert into t."events" (type) values ('x')`, 'xid'],
  [`insert into t.events as e (type) values ('x')`, 'xid'],
  [`insert into t.events select * from x`, 'xid'],
])('%s', (sql, rule) => {
  expect(violationsOf(sql).map((violation) => violation.rule)).toEqual([expect.stringContaining(rule)]);
});

test.each([
  `update t.jobs set run_at = now() + $1 * interval '1 second', payload = payload || $2::jsonb where at < now() - interval '1 hour'`,
  `with n as (select id, coalesce(at, clock_timestamp()) as at from t.jobs for update) update t.jobs j set at = n.at from n where j.id = n.id`,
  `with c as (select id from t.jobs where random() < 1) update t.jobs set x = 1 where id = any(array(select id from c)) returning id, x`,
  `update t.jobs set x = greatest(x, 1), payload = jsonb_set(payload, '{a}', $1::jsonb) where at between now() - interval '1 day' and now()`,
  `update t.jobs set x = (select count(*) from t.leases l where l.expires_at + interval '1 hour' < now())`,
  `insert into t.a (id) values (1) on conflict (id) do update set x = coalesce(a.x, excluded.x) where a.x is distinct from excluded.x returning id`,
  `create constraint trigger_name after update on t.leases`,
  `with c as (update t.jobs set x = 1 returning id) select jsonb_build_object('id', id, 'now', now()) from c`,
  `select id from t.jobs where pg_try_advisory_xact_lock(1) for no key update skip locked`,
  `insert into t.events (xid, type) select x, 'clock_timestamp()' from a -- random()`,
  `insert into t.a (id) values (1) on conflict (id) do update set at = excluded.at`,
])('allowed: %s', (sql) => expect(violationsOf(sql)).toEqual([]));
