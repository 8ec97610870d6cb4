import { beforeAll, describe, expect, it } from 'vitest';
import { countJobs, eligible } from '../../../../server/jobs/actions/bulk-operations.ts';
import type { Status } from '../../../../server/jobs/model/states.ts';
import type { JobFilter } from '../../../../server/jobs/read/filter.ts';
import { pageOfIds } from '../../../../server/jobs/read/page-of-ids.ts';
import { useTenant } from '../../../support/postgres/database.ts';

const context = useTenant();
const jobs = 24_000;

// More live jobs than are sorted on the spot, more history than one slice: every way to the ids is walked.
beforeAll(async () => {
  const { db, schema } = context;
  const time = "lpad(to_hex((1750000000000 + n)::bigint), 12, '0')";
  const id = `(substr(${time}, 1, 8) || '-' || substr(${time}, 9, 4) || '-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid`;
  await db.query(
    `insert into ${schema}.targets (id) select 't' || n from generate_series(0, 9) n union all select 'long'`,
  );
  await db.query(
    `insert into ${schema}.jobs (id, status, type, target_id, lane_head, lane_rank, lane_seq, payload, created_at, finished_at, held_since)
     select ${id}, status, case when n % 997 = 0 then 'rare' else 'common' end, target, target is null,
            case when target is null then null when status in ('QUEUED', 'PAUSED') then 4 end, n, '{}',
            timestamptz '2025-06-15 15:06:40Z' + n * interval '1 millisecond',
            case when status in ('SUCCESS', 'CANCELED', 'ERROR') then now() end,
            case when status in ('PAUSED', 'ERROR') then now() end
       from (select n, case when n % 3 = 0 then 't' || n % 10 end as target,
                    (array['SUCCESS', 'QUEUED', 'PAUSED', 'ERROR', 'SUCCESS', 'QUEUED', 'SUCCESS'])[n % 7 + 1] as status
               from generate_series(1, ${jobs}) n) g`,
  );
  // A lane has a head, a line, and what is past or still to come.
  await db.query(
    `update ${schema}.jobs set status = 'QUEUED', lane_head = true, lane_rank = null, finished_at = null, held_since = null
      where id in (select id from ${schema}.jobs where target_id = 't6' and status = 'SUCCESS' order by id offset 100 limit 1)`,
  );
  await db.query(
    `insert into ${schema}.jobs (id, status, type, target_id, lane_head, lane_rank, lane_seq, payload)
     select ('0197' || lpad(to_hex(n % 65536), 4, '0') || '-000' || n / 65536 || '-7000-8000-000000000000')::uuid, 'QUEUED', 'common', 'long', false, 4, n, '{}'
       from generate_series(1, 100200) n`,
  );
  await db.query(
    `update ${schema}.jobs set status = 'CANCELED' where status = 'SUCCESS' and id in (select id from ${schema}.jobs where status = 'SUCCESS' order by id limit 3)`,
  );
});

const filters: [string, JobFilter][] = [
  ['everything', {}],
  ['queued', { statuses: ['QUEUED'] }],
  ['held', { statuses: ['PAUSED', 'ERROR'] }],
  ['paused', { statuses: ['PAUSED'] }],
  ['paused of a rare type', { statuses: ['PAUSED', 'ERROR'], type: 'rare' }],
  ['running', { statuses: ['RUNNING'] }],
  ['pending and queued', { statuses: ['PENDING', 'QUEUED'] }],
  ['the oldest three', { statuses: ['CANCELED'] }],
  ['a rare type', { type: 'rare' }],
  ['a target', { targetId: 't3' }],
  ['a target with a head', { targetId: 't6' }],
  ['the waiting of a target', { targetId: 't6', statuses: ['QUEUED'] }],
  ['a target with a line too long to sort', { targetId: 'long' }],
  ['a target that nobody knows', { targetId: 'nobody' }],
  ['held of a target', { targetId: 't3', statuses: ['PAUSED'] }],
  ['a time', { createdAfter: '2025-06-15T15:06:50Z', createdBefore: '2025-06-15T15:06:55.000001Z' }],
  ['nothing', { statuses: [] }],
];

async function bruteForce(filter: JobFilter): Promise<string[]> {
  const rows = await context.db.query<{ id: string }>(
    `select id from ${context.schema}.jobs
      where ($1::text[] is null or status = any($1)) and ($2::text is null or type = $2) and ($3::text is null or target_id = $3)
        and ($4::timestamptz is null or created_at > $4) and ($5::timestamptz is null or created_at < $5) order by id desc`,
    [filter.statuses, filter.type, filter.targetId, filter.createdAfter, filter.createdBefore].map((v) => v ?? null),
  );
  return rows.map((row) => row.id);
}

describe('lists of many jobs', () => {
  it.each(filters)('page through %s: each job once, newest first', async (_, filter) => {
    const seen: string[] = [];
    let before: string | undefined;
    do {
      const page = await pageOfIds(context.db, context.schema, filter, { limit: 3000, before });
      expect(page.ids.length).toBeLessThanOrEqual(3000);
      seen.push(...page.ids);
      before = page.next;
    } while (before !== undefined);
    expect(seen).toEqual(await bruteForce(filter));
  });

  it.each(['cancel', 'resume', 'retry'] as const)('are counted exactly for %s', async (action) => {
    for (const filter of [{}, { type: 'rare' }, { targetId: 't6' }, { statuses: ['PAUSED', 'SUCCESS'] as Status[] }]) {
      const able = eligible(action, filter);
      expect(await countJobs(context.db, context.schema, able)).toBe((await bruteForce(able)).length);
    }
  });
});
