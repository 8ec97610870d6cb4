// Thousands of jobs that become due, or get an event, in the same moment: each batch reads only its own.
import { expect, test } from 'vitest';
import type { Database } from '../../../../server/database/database.ts';
import { queueDueJobs } from '../../../../server/jobs/finish/due-jobs.ts';
import { deliverEvents } from '../../../../server/jobs/received/deliver-events.ts';
import { receiveEvent } from '../../../../server/jobs/received/receive-event.ts';
import { loadConfig } from '../../../../server/kernel/config.ts';
import { createPolledTasks } from '../../../../server/maintenance/polled-tasks.ts';
import { probeTenants } from '../../../../server/maintenance/probes.ts';
import { addJobs } from '../../../support/jobs.ts';
import { useTenant } from '../../../support/postgres/database.ts';

const context = useTenant();
const crowd = 1000;
const batch = 200;

interface PlanNode {
  'Node Type': string;
  'Actual Rows': number;
  'Actual Loops': number;
  'Rows Removed by Filter'?: number;
  Plans?: PlanNode[];
}

/** The most rows that a scan of this statement's plan has read. */
async function rowsRead(text: string, values: unknown[]): Promise<number> {
  const [row] = await context.db.query<{ 'QUERY PLAN': { Plan: PlanNode }[] }>(
    `explain (analyze, format json) ${text}`,
    values,
  );
  const maxOf = (node: PlanNode): number =>
    Math.max(
      node['Node Type'].includes('Scan')
        ? (node['Actual Rows'] + (node['Rows Removed by Filter'] ?? 0)) * node['Actual Loops']
        : 0,
      ...(node.Plans ?? []).map(maxOf),
    );
  return maxOf(row!['QUERY PLAN'][0]!.Plan);
}

/** Pages that this statement reads, once they are in memory. */
async function pagesRead(text: string, values: unknown[]): Promise<number> {
  const [row] = await context.db.query<{ 'QUERY PLAN': { Plan: Record<string, number> }[] }>(
    `explain (analyze, buffers, format json) ${text}`,
    values,
  );
  const plan = row!['QUERY PLAN'][0]!.Plan;
  return (plan['Shared Hit Blocks'] ?? 0) + (plan['Shared Read Blocks'] ?? 0);
}

/** The database, with a record of what is sent outside of transactions. */
function recording() {
  const sent: { text: string; values: unknown[] }[] = [];
  const { db } = context;
  const query = (text: string, values: unknown[] = []) => {
    sent.push({ text, values });
    return db.query(text, values);
  };
  const transaction: Database['transaction'] = (work) => db.transaction(work);
  return { sent, db: { query, transaction } as unknown as Database };
}

test('one batch of many jobs that are due at the same time is read, in the order of their ids', async () => {
  const { schema } = context;
  const jobs = await addJobs(
    context,
    Array.from({ length: crowd }, () => ({ runAt: '2090-01-01T00:00:00Z' })),
  );
  await context.db.query(`update ${schema}.jobs set run_at = '2020-01-01' where status = 'PENDING'`);
  await context.db.query(`analyze ${schema}.jobs`);
  const { db, sent } = recording();
  expect(await queueDueJobs(db, schema, 'test', batch)).toBe(batch);
  const queued = await context.db.query<{ id: string }>(
    `select id from ${schema}.jobs where status = 'QUEUED' and id = any($1) order by id`,
    [jobs.map(({ id }) => id)],
  );
  expect(queued.map(({ id }) => id)).toEqual(
    jobs
      .map(({ id }) => id)
      .sort()
      .slice(0, batch),
  );
  expect(await rowsRead(sent[0]!.text, sent[0]!.values)).toBeLessThanOrEqual(batch);
});

test('one batch of many waits for one event is read', async () => {
  const { schema } = context;
  const jobs = await addJobs(
    context,
    Array.from({ length: crowd }, () => ({})),
  );
  await context.db.query(
    `insert into ${schema}.phases (job_id, name, kind, position, status, event_name, match_key)
     select id, w, 'event', 0, 'running', 'all', '' from unnest($1::uuid[]) as j(id) cross join (values ('a'), ('b')) as v(w)`,
    [jobs.map(({ id }) => id)],
  );
  await context.db.query(`analyze ${schema}.phases, ${schema}.jobs`);
  await receiveEvent(context.db, schema, { name: 'all' }, 'test');
  const { db, sent } = recording();
  await deliverEvents(db, schema, 'test');
  const [search] = sent.filter(({ text }) => text.includes('match_key = k.key'));
  await context.db.query(`update ${schema}.phases set status = 'running', received_id = null`);
  expect(await rowsRead(search!.text, search!.values)).toBeLessThanOrEqual(2 * batch);
  expect(sent.length).toBeLessThan((4 * crowd) / batch);
  const left = await context.db.query(`select 1 from ${schema}.received_events where delivered_at is null`);
  expect(left).toEqual([]);
});

test('a batch of sleepers is woken by one statement', async () => {
  const { schema } = context;
  // Due before the jobs of the other tests.
  await context.db.query(
    `insert into ${schema}.jobs (id, status, lane_head, type, payload, attempt, held_since, run_at, waiting)
     select gen_random_uuid(), 'WAITING', true, 'sleeper', '{}', 1, now(), '2019-01-01', '{"kind": "sleep", "step": "nap"}'
       from generate_series(1, 150)`,
  );
  const sent: string[] = [];
  const db = {
    query: context.db.query.bind(context.db),
    transaction: ((work) =>
      context.db.transaction((tx) =>
        work({
          query(text, values, reuse) {
            sent.push(text);
            return tx.query(text, values, reuse);
          },
        }),
      )) as Database['transaction'],
  } as unknown as Database;
  await queueDueJobs(db, schema, 'test', batch);
  expect(sent.filter((text) => text.includes('job.woken'))).toHaveLength(1);
  const [left] = await context.db.query(`select 1 from ${schema}.jobs where status = 'WAITING' and type = 'sleeper'`);
  expect(left).toBeUndefined();
});

test('100,000 waiting jobs cost the polls of an idle daemon nothing', async () => {
  const { schema, tenant } = context;
  const nothing = () => {};
  const workers = { wake: nothing, dueIn: nothing, wakeGate: nothing };
  const sweeper = { sweep: async () => {} };
  const tasks = createPolledTasks({
    ...{ config: loadConfig({}), workers, wakePeers: () => {}, schedules: workers, sweeper },
    tasks: {} as never,
  });
  /** What a poll of all tasks sends, and the search for jobs that are due. */
  const pagesOfAPoll = async () => {
    await context.db.query(`vacuum analyze ${schema}.jobs`);
    const { db, sent } = recording();
    await probeTenants(db, [tenant], Object.assign({}, ...tasks.map(({ probes }) => probes)));
    await queueDueJobs(db, schema, 'test', batch);
    let pages = 0;
    for (const { text, values } of sent) pages += await pagesRead(text, values);
    return pages;
  };
  const before = await pagesOfAPoll();
  await context.db.query(
    `insert into ${schema}.jobs (id, status, lane_head, type, payload, attempt, held_since, run_at, waiting)
     select gen_random_uuid(), 'WAITING', true, 'crowd', '{}', 1, now(), now() + n * interval '1 hour',
            jsonb_build_object('kind', (array['sleep', 'event', 'question', 'children'])[1 + n % 4], 'step', 'nap')
       from generate_series(1, 100000) as n`,
  );
  expect(await pagesOfAPoll()).toBeLessThan(before + 20);
});
