// A tenant at size, by SQL: most jobs have ended, some targets are held, some run, lines behind them, a week of statistics.
import type { Database } from '../../server/database/database.ts';
import { controlSchema, type Schema } from '../../server/database/identifiers.ts';
import type { ScaleSample } from './pages-requests.ts';

export interface Scale {
  jobs: number;
  targets: number;
  tenants: number;
}

const slice = 100_000;

/** SQL over `n`: a uuid v7 of a time in the last thirty days, growing with `n`. */
const idOf = (count: number) =>
  `(lpad(to_hex((extract(epoch from now() - interval '30 days' * (1 - n::float8 / ${count})) * 1000)::bigint), 12, '0')
    || '7' || substr(md5('a' || n), 1, 3) || '8' || substr(md5('b' || n), 1, 15))::uuid`;
const atOf = (count: number) => `now() - interval '30 days' * (1 - n::float8 / ${count})`;

export async function fillScale(db: Database, schema: Schema, scale: Scale): Promise<ScaleSample> {
  const { jobs, targets } = scale;
  // The last eighth is not finished: heads of four fifths of the targets, then lines behind them.
  const ended = Math.floor((jobs * 7) / 8);
  const heads = Math.floor((targets * 4) / 5);
  await db.query(
    `insert into ${schema}.targets (id, lane_seq, paused_at, paused_by)
     select 'target-' || n, ${jobs}, case when n >= ${heads} and n % 20 = 0 then now() end, case when n >= ${heads} and n % 20 = 0 then 'ann' end
       from generate_series(0, ${targets - 1}) as n`,
  );
  for (let from = 0; from < ended; from += slice)
    await insertEnded(db, schema, scale, from, Math.min(from + slice, ended));
  await insertHeads(db, schema, scale, ended, heads);
  for (let from = ended + heads; from < jobs; from += slice) {
    await insertLine(db, schema, scale, from, Math.min(from + slice, jobs), heads);
  }
  await insertSurroundings(db, schema, scale);
  await db.query(
    `analyze ${schema}.jobs, ${schema}.events, ${schema}.targets, ${schema}.stat_minutes, ${schema}.leases`,
  );
  const [row] = await db.query<{ held: string; done: string }>(
    `select (select id from ${schema}.jobs where status = 'ERROR' and lane_head order by id limit 1) as held,
            (select id from ${schema}.jobs order by id limit 1) as done`,
  );
  return { heldJob: row?.held ?? '', doneJob: row?.done ?? '', heldTarget: 'target-7' };
}

const common = `'scale.' || chr(97 + n % 20) as type, 'q' || n % 4 as queue, (n % 4)::smallint as priority`;

async function insertEnded(db: Database, schema: Schema, { jobs, targets }: Scale, from: number, to: number) {
  await db.query(
    `with made as (
       select ${idOf(jobs)} as id, ${atOf(jobs)} as at, n, ${common},
              case when n % 40 = 0 then 'CANCELED' when n % 50 = 1 then 'ERROR' else 'SUCCESS' end as status
         from generate_series(${from}, ${to - 1}) as n),
     jobs as (
       insert into ${schema}.jobs (id, created_at, run_at, updated_at, started_at, finished_at, held_since, status, type, queue,
              priority, on_error, target_id, lane_head, lane_seq, attempt, payload, error, result)
       select id, at, at, at, at, at + interval '5 seconds', case when status = 'ERROR' then at end, status, type, queue, priority,
              'continue', 'target-' || n % ${targets}, false, n, 1, jsonb_build_object('customer', jsonb_build_object('id', n)),
              case when status = 'ERROR' then '{"code":"HANDLER_ERROR","message":"scale"}'::jsonb end, '{"ok":true}'
         from made)
     insert into ${schema}.events (at, type, job_id, target_id, from_status, to_status, attempt, actor)
     select at, 'job.completed', id, 'target-' || n % ${targets}, 'RUNNING', status, 1, 'worker:w1' from made`,
  );
}

async function insertHeads(db: Database, schema: Schema, { jobs }: Scale, ended: number, heads: number) {
  await db.query(
    `with made as (
       select ${idOf(jobs)} as id, ${atOf(jobs)} as at, n - ${ended} as t, n, ${common},
              case when (n - ${ended}) % 8 < 2 then 'ERROR' when (n - ${ended}) % 8 = 2 then 'PAUSED'
                   when (n - ${ended}) % 32 = 3 then 'RUNNING' else 'QUEUED' end as status
         from generate_series(${ended}, ${ended + heads - 1}) as n),
     jobs as (
       insert into ${schema}.jobs (id, created_at, run_at, updated_at, started_at, finished_at, held_since, status, type, queue,
              priority, target_id, lane_head, lane_seq, attempt, payload, error, lease_id, lease_owner)
       select id, at, at, at, at, case when status = 'ERROR' then at end, case when status in ('ERROR','PAUSED') then at end, status,
              type, queue, priority, 'target-' || t, true, n, 1, '{}',
              case when status = 'ERROR' then '{"code":"HANDLER_ERROR","message":"scale","stack":"Error: scale"}'::jsonb end,
              case when status = 'RUNNING' then md5('lease' || t % 8)::uuid end,
              case when status = 'RUNNING' then 'worker-' || t % 8 end
         from made returning id, status, lease_id, lease_owner)
     insert into ${schema}.leases (id, kind, owner, job_ids, ttl_seconds, expires_at)
     select lease_id, 'local', lease_owner, array_agg(id), 15, now() + interval '1 hour' from jobs
      where status = 'RUNNING' group by lease_id, lease_owner`,
  );
}

async function insertLine(db: Database, schema: Schema, { jobs }: Scale, from: number, to: number, heads: number) {
  await db.query(
    `insert into ${schema}.jobs (id, created_at, run_at, updated_at, status, type, queue, priority, target_id, lane_head,
            lane_rank, lane_seq, payload)
     select ${idOf(jobs)}, ${atOf(jobs)}, ${atOf(jobs)}, ${atOf(jobs)}, 'QUEUED', 'scale.' || chr(97 + n % 20), 'q' || n % 4, 2,
            'target-' || n % ${heads}, false, 4, n, '{}'
       from generate_series(${from}, ${to - 1}) as n`,
  );
}

async function insertSurroundings(db: Database, schema: Schema, { tenants }: Scale): Promise<void> {
  await db.query(
    `insert into ${schema}.stat_minutes (queue, minute, enqueued, started, succeeded, failed, deltas, wait_buckets, run_buckets, oldest_at)
     select q, m, 40, 40, 38, 2, '{"QUEUED":1}', array_fill(1, array[52]), array_fill(1, array[52]), m - interval '3 minutes'
       from unnest(array['', 'q0', 'q1', 'q2', 'q3']) as q
      cross join generate_series(date_trunc('minute', now()) - interval '30 days', now(), interval '1 minute') as m`,
  );
  await db.query(
    `insert into ${schema}.stat_minutes (queue, minute, deltas, wait_buckets, run_buckets)
     select q, '-infinity', '{"QUEUED":110000,"RUNNING":250,"ERROR":19000,"SUCCESS":800000}', '{}', '{}'
       from unnest(array['', 'q0', 'q1', 'q2', 'q3']) as q`,
  );
  // Statistics were counted above, so nothing is left to roll up.
  await db.query(
    `insert into ${schema}.followers (name, snapshot) values ('statistics', pg_current_snapshot()::text)
     on conflict (name) do update set snapshot = excluded.snapshot`,
  );
  await db.query(
    `insert into ${schema}.webhook_deliveries (id, job_id, event_xid, event_seq, event_type, url, body, state, attempts, finished_at)
     select id, id, '1', n, 'job.completed', 'https://example.com/hook', '{}',
            case when n % 100 = 0 then 'failed' else 'delivered' end, 1, now()
       from (select id, row_number() over () as n from ${schema}.jobs order by id desc limit 50000) j`,
  );
  await db.query(
    `insert into ${controlSchema}.tenants (id, slug, schema_name, status)
     select gen_random_uuid(), 'tenant' || n, 'tenant_tenant' || n, 'SUSPENDED' from generate_series(2, ${tenants}) as n`,
  );
}
