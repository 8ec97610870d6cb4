// Every statement that writes a job's status, as Postgres received it: its guard, its new status and its event are
// those of one transition of the table. A trigger collects the statements, so none is missed, whichever code sent it.
import { beforeAll, describe, expect, test } from 'vitest';
import { claimChosenJobs } from '../../../../server/jobs/claim/claim.ts';
import { enqueue } from '../../../../server/jobs/enqueue/enqueue.ts';
import { finishAttempts } from '../../../../server/jobs/finish/finish.ts';
import { type Status, type TransitionName, transitions } from '../../../../server/jobs/model/states.ts';
import { transition } from '../../../../server/jobs/transition.ts';
import { addJobs } from '../../../support/jobs.ts';
import { type Change, transitionVerbs } from '../../../support/model/transition-verbs.ts';
import { citusCluster } from '../../../support/postgres/citus.ts';
import { useTenant } from '../../../support/postgres/database.ts';

const context = useTenant();
const { jobIn, verbs } = transitionVerbs(context);
const names = Object.keys(transitions) as TransitionName[];

interface StatusWrite {
  statement: string;
  from: Status | null;
  to: Status;
}

// In a cluster the same statements name shards, and the trigger of a shard cannot write to another table.
const isCluster = citusCluster() !== undefined;

beforeAll(async () => {
  const { db, schema } = context;
  if (isCluster) return;
  await db.query(
    `create table ${schema}.status_writes (statement text, from_status text, to_status text, n int generated always as identity)`,
  );
  await db.query(
    `create function ${schema}.log_status_write() returns trigger language plpgsql as $$ begin
       insert into ${schema}.status_writes
       values (current_query(), case tg_op when 'UPDATE' then old.status end, new.status);
       return new;
     end $$`,
  );
  const run = `execute function ${schema}.log_status_write()`;
  await db.query(`create trigger log_insert after insert on ${schema}.jobs for each row ${run}`);
  await db.query(`create trigger log_update after update of status on ${schema}.jobs for each row ${run}`);
});

/** The writes since the last call. */
async function takeWrites(): Promise<StatusWrite[]> {
  return context.db.query<StatusWrite & Record<string, unknown>>(
    `with taken as (delete from ${context.schema}.status_writes returning *)
     select statement, from_status as from, to_status as to from taken order by n`,
  );
}

interface RenderedWrite {
  guard: string[];
  to: string;
}

/** The updates of a status within a statement. */
function updatesIn(statement: string): RenderedWrite[] {
  const updates = statement.matchAll(/\bupdate\s+\S+\.jobs\b(?:\s+j)?\s+set\s(.*?)\swhere\s(.*?)\sreturning\s/gis);
  return [...updates].flatMap(([, assignments = '', where = '']) => {
    const written = [...assignments.matchAll(/(?<![\w.])status\s*=\s*'?(\w+)/g)].map(([, to = '']) => to);
    const guards = [...where.matchAll(/\bstatus\s+in\s+\(([^)]*)\)/g)].map(([, list = '']) => list);
    if (written.length === 0) return [];
    // Two assignments, or two guards, could hide a disagreement.
    expect([written.length, guards.length]).toEqual([1, 1]);
    const guard = (guards[0] as string).split(',').map((status) => status.trim().replaceAll("'", ''));
    return [{ guard, to: written[0] as string }];
  });
}

/** `job.failed before_status ERROR` for each event that the statement records. */
function eventsIn(statement: string): Set<string> {
  const selects = statement.matchAll(/'(job\.\w+)',\s*id,\s*target_id,\s*([^,]+?),\s*([^,]+?),/g);
  return new Set([...selects].map(([, type, from, to]) => `${type} ${from} ${to}`));
}

/** The transitions that an update and the events beside it could be. */
function transitionsOf(update: RenderedWrite, events: Set<string>): TransitionName[] {
  return names.filter((name) => {
    const { from, to, event } = transitions[name];
    const before = from.length === 1 ? `'${from[0]}'` : 'before_status';
    return to === update.to && from.join() === update.guard.join() && events.has(`${event} ${before} '${to}'`);
  });
}

/** Checks each statement against the table, and each row that it wrote. Returns the transitions that were made. */
function check(writes: StatusWrite[]): Set<TransitionName> {
  const made = new Set<TransitionName>();
  for (const { statement, from, to } of writes) {
    if (from === null) continue;
    const events = eventsIn(statement);
    const found = updatesIn(statement).map((update) => ({ update, names: transitionsOf(update, events) }));
    for (const { update, names } of found) expect([statement, update, names.length]).toEqual([statement, update, 1]);
    const own = found.flatMap((each) => each.names).filter((name) => transition(name).to === to);
    expect([statement, own.some((name) => transition(name).from.includes(from))]).toEqual([statement, true]);
    for (const name of own) made.add(name);
  }
  return made;
}

describe.skipIf(isCluster).each(Object.keys(verbs) as Change[])('%s', (name) => {
  test.each(transitions[name].from)('from %s is written according to the table', async (status) => {
    const job = await jobIn(status);
    check(await takeWrites());
    await verbs[name](job);
    const writes = await takeWrites();
    expect(check(writes)).toContain(name);
  });
});

test.skipIf(isCluster)(
  'jobs that start with the end of another, or are chosen by the caller, are written according to the table',
  async () => {
    const type = crypto.randomUUID();
    const [first, second] = await addJobs(context, [
      { type, targetId: type },
      { type, targetId: type },
    ]);
    const request = { owner: 'w1', limit: 1, leaseSeconds: 60, types: [type] };
    const { jobs, leaseId } = await claimChosenJobs(context.db, context.schema, request, [first?.id as string]);
    expect(check(await takeWrites())).toEqual(new Set(['start']));
    const attempt = { jobId: jobs[0]?.id as string, leaseId, targetId: type };
    const { claimed } = await finishAttempts(
      context.db,
      context.schema,
      [{ ...attempt, outcome: { kind: 'complete', result: 1 } }],
      { actor: 'worker:w1', claimNext: { ...request, leaseId: crypto.randomUUID() } },
    );
    expect(claimed?.jobs.map((job) => job.id)).toEqual([second?.id]);
    expect(check(await takeWrites())).toEqual(new Set(['complete', 'start']));
  },
);

test.skipIf(isCluster)('jobs are inserted according to their transitions, also when they start at once', async () => {
  const { db, schema } = context;
  const runAt = new Date(Date.now() + 3_600_000).toISOString();
  const type = crypto.randomUUID();
  await takeWrites();
  await enqueue(db, schema, [{ type, payload: {} }], 'test');
  await enqueue(db, schema, [{ type, payload: {}, targetId: type }], 'test');
  await enqueue(db, schema, [{ type, payload: {}, runAt }], 'test');
  const reserve = () => ({
    leaseId: crypto.randomUUID(),
    owner: 'w1',
    leaseSeconds: 60,
    started: () => {},
    failed: () => {},
  });
  await enqueue(db, schema, [{ type, payload: {} }], 'test', { reserve });
  const writes = await takeWrites();
  const { enqueue: now, schedule: later, start } = transitions;
  expect(writes.map(({ from, to }) => [from, to])).toEqual([now, now, later, start].map(({ to }) => [null, to]));
  for (const { statement } of writes) expect(statement.match(/\binsert into \S+\.jobs\b/g)).toHaveLength(1);
  const events = await db.query(
    `select e.type, e.from_status, e.to_status from ${schema}.events e join ${schema}.jobs j on j.id = e.job_id
      where j.type = $1 order by e.seq`,
    [type],
  );
  const started = { type: start.event, from_status: start.from[0], to_status: start.to };
  const recorded = [now, now, later, now].map(({ event, to }) => ({ type: event, from_status: null, to_status: to }));
  expect(events).toEqual([...recorded, started]);
});

test('the check finds a statement whose guard and new status belong to two transitions', () => {
  const mixed = `with moved as (
      update t.jobs j set status = 'LEASE_PENDING', updated_at = now() from b
       where j.id = b.id and ${transition('grantLease').guard()} returning j.id),
    recorded as (insert into t.events select 'job.lease_granted', id, target_id, before_status, 'RUNNING', 1 from moved)
    select 1`;
  expect(updatesIn(mixed)).toHaveLength(1);
  expect(() => check([{ statement: mixed, from: 'CLAIMED', to: 'LEASE_PENDING' }])).toThrow();
});

test('an update cannot set another status or place in the lane than its transition does', () => {
  const parts = { place: 'head', where: 'true', returning: 'j.id' } as const;
  for (const set of [`status = 'RUNNING'`, `attempt = 1, status='RUNNING'`, 'lane_head = true', 'lane_rank = null']) {
    expect(() => transition('pause').update(context.schema, { ...parts, set })).toThrow('table of transitions');
  }
  const update = transition('pause').update(context.schema, { ...parts, set: `lease_id = null` });
  expect(updatesIn(update)).toEqual([{ guard: [...transitions.pause.from], to: 'PAUSED' }]);
});
