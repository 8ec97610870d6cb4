import { afterEach, beforeAll, describe, expect, it } from 'vitest';
import { runCli } from '../../../server/cli/program.ts';
import { pruneEvents } from '../../../server/events/seals/prune.ts';
import { cancelJob, pauseJob } from '../../../server/jobs/actions/pause-and-cancel.ts';
import { resumeJob } from '../../../server/jobs/actions/resume.ts';
import { pauseTarget, resumeTarget } from '../../../server/jobs/lanes/target.ts';
import type { Job } from '../../../server/jobs/model/job.ts';
import { type Verification, verifyTenant } from '../../../server/verify/verify-tenant.ts';
import type { Violation } from '../../../server/verify/violation.ts';
import { writeEvent, writeOutOfOrder } from '../../support/events.ts';
import { addJobs, claim, finish } from '../../support/jobs.ts';
import { loseLease } from '../../support/lose-lease.ts';
import { useTenant } from '../../support/postgres/database.ts';
import { ageSeals, sealAll } from '../../support/seals.ts';

const context = useTenant();
const verify = () => verifyTenant(context.db, context.schema);

const seal = () => sealAll(context);

/** Lanes with everything that can happen in them. */
async function live(): Promise<Job[]> {
  const { db, schema } = context;
  const jobs = await addJobs(context, [
    { targetId: 'a' },
    { targetId: 'a', priority: 'URGENT' },
    { targetId: 'a' },
    { targetId: 'b', maxAttempts: 3 },
    { targetId: 'b' },
    {},
  ]);
  const by = (job: Job) => ({ jobId: job.id, actor: 'user:ann' });
  const [first, , third, retried] = jobs as [Job, Job, Job, Job];
  await pauseJob(db, schema, by(third));
  for (let round = 0; round < 8; round++) {
    const { jobs: claimed } = await claim(context);
    for (const job of claimed) {
      const fails = job.id === retried.id && job.attempt < 3;
      const error = { code: 'HANDLER_ERROR', message: 'no' };
      if (job.id === first.id && job.attempt === 1) await finish(context, job, { kind: 'fail', error });
      else if (fails && job.attempt === 1) await finish(context, job, { kind: 'recover', error });
      else await finish(context, job);
    }
    if (round === 1) await pauseTarget(db, schema, { targetId: 'a', actor: 'user:ann' });
    if (round === 2) await resumeJob(db, schema, by(first));
    if (round === 3) await resumeTarget(db, schema, { targetId: 'a', actor: 'user:ann' });
    if (round === 5) await cancelJob(db, schema, by(third));
  }
  return jobs;
}

let jobs: Job[];
/** As it was before any test wrote more. */
let initial: Verification;
beforeAll(async () => {
  jobs = await live();
  await seal();
  initial = await verify();
});

/** Changes something behind the product's back; put back after the test. */
const undo: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const step of undo.splice(0).reverse()) await step();
  expect((await verify()).violations).toEqual([]);
});

let copies = 0;

async function tamper(change: string, values: unknown[] = []): Promise<void> {
  const { db, schema } = context;
  // Under other names each time: a node's tables are known by their names.
  copies += 1;
  for (const table of ['events', 'event_seals', 'jobs', 'followers']) {
    const copy = `${schema}.saved_${table}_of_${copies}`;
    await db.query(`create table ${copy} as select * from ${schema}.${table}`);
    undo.push(async () => {
      await db.query(`delete from ${schema}.${table}`);
      await db.query(
        `insert into ${schema}.${table} ${table === 'events' ? 'overriding system value' : ''} select * from ${copy}`,
      );
      await db.query(`drop table ${copy}`);
    });
  }
  await db.query(change, values);
}

async function eventOf(type: string): Promise<{ key: string; xid: string; seq: string; job_id: string }> {
  const [row] = await context.db.query<{ key: string; xid: string; seq: string; job_id: string }>(
    `select xid::text || ':' || seq as key, xid, seq, job_id from ${context.schema}.events where type = $1 order by seq limit 1`,
    [type],
  );
  if (!row) throw new Error(`there is no ${type}`);
  return row;
}

const brief = (found: Verification) => found.violations.map((f: Violation) => [f.kind, f.event ?? f.seal ?? f.jobId]);

describe('verification', () => {
  it('accepts a log with every kind of event', () => {
    expect(initial.violations).toEqual([]);
    expect(initial.jobs).toMatchObject({ jobs: 6 });
    expect(initial.lanes).toMatchObject({ targets: 2 });
    expect(initial.seals).toMatchObject({ seals: 1, unsealedEvents: 0 });
  });

  it('seals events that commit out of order, and reports later ones as not sealed yet', async () => {
    await writeOutOfOrder(context, { writers: 4, each: 5, targets: 3 });
    await seal();
    await writeEvent(context.db, context.schema);
    const found = await verify();
    expect(found.violations).toEqual([]);
    expect(found.seals.unsealedEvents).toBe(1);
    await seal();
    expect((await verify()).seals.unsealedEvents).toBe(0);
  });

  it('names an edited row, whichever column was edited', async () => {
    const { schema } = context;
    const event = await eventOf('job.resumed');
    for (const edit of [
      `actor = 'user:eve'`,
      `at = at + interval '1 microsecond'`,
      `data = '{"reason": 12345678901234567890}'`,
      'lease_id = null, attempt = 7',
    ]) {
      await tamper(`update ${schema}.events set ${edit} where xid = $1 and seq = $2`, [event.xid, event.seq]);
      expect(brief(await verify()), edit).toEqual([['event_altered', event.key]]);
      for (const step of undo.splice(0).reverse()) await step();
    }
  });

  it('names a deleted row', async () => {
    const event = await eventOf('target.paused');
    await tamper(`delete from ${context.schema}.events where xid = $1 and seq = $2`, [event.xid, event.seq]);
    expect(brief(await verify())).toContainEqual(['event_missing', event.key]);
  });

  it('names both of two swapped rows', async () => {
    const [one, two] = [await eventOf('target.paused'), await eventOf('target.resumed')];
    await tamper(
      `update ${context.schema}.events e set type = o.type, data = o.data, at = o.at, actor = o.actor
         from ${context.schema}.events o where e.type in ('target.paused', 'target.resumed')
          and o.type in ('target.paused', 'target.resumed') and o.seq <> e.seq`,
    );
    expect(brief(await verify())).toEqual(
      expect.arrayContaining([
        ['event_altered', one.key],
        ['event_altered', two.key],
      ]),
    );
  });

  it('names an inserted row', async () => {
    const { xid } = await eventOf('target.paused');
    await tamper(
      `insert into ${context.schema}.events (xid, seq, type, actor) overriding system value values ($1, 999999, 'forged', 'user:eve')`,
      [xid],
    );
    expect(brief(await verify())).toEqual([['event_inserted', `${xid}:999999`]]);
  });

  it('names a seal that was edited, removed or cut off', async () => {
    const { schema } = context;
    const last = (await verify()).seals.end?.number ?? '';
    await tamper(
      `update ${schema}.event_seals set event_hashes = overlay(event_hashes placing 'x' from 1) where number = 1`,
    );
    expect(brief(await verify())).toContainEqual(['seal_altered', '1']);
    for (const step of undo.splice(0).reverse()) await step();
    await tamper(`delete from ${schema}.event_seals where number = $1`, [last]);
    expect(brief(await verify())).toContainEqual(['seal_missing', last]);
    for (const step of undo.splice(0).reverse()) await step();
    await tamper(`delete from ${schema}.event_seals where number = 1`);
    expect(brief(await verify())).toContainEqual(['seal_missing', '1']);
  });

  it('detects a rebuilt chain by a seal that was noted elsewhere', async () => {
    const { db, schema } = context;
    const anchor = (await verify()).seals.end as { number: string; hash: string };
    expect((await verifyTenant(db, schema, { anchor })).violations).toEqual([]);
    await tamper(`delete from ${schema}.event_seals`);
    await db.query(`delete from ${schema}.followers where name = 'seals'`);
    await db.query(`update ${schema}.events set actor = 'user:eve' where type = 'job.resumed'`);
    await seal();
    expect((await verify()).violations).toEqual([]);
    expect((await verifyTenant(db, schema, { anchor })).violationCount).toBeGreaterThan(0);
  });

  it('finds a job whose row contradicts its history', async () => {
    const { schema } = context;
    const job = jobs[5] as Job;
    await tamper(`update ${schema}.jobs set status = 'CANCELED' where id = $1`, [job.id]);
    const found = await verify();
    expect(found.violations).toMatchObject([
      { kind: 'job_state', jobId: job.id, detail: expect.stringMatching(/CANCELED.*SUCCESS/) },
    ]);
    for (const step of undo.splice(0).reverse()) await step();
    await tamper(`delete from ${schema}.jobs where id = $1`, [job.id]);
    expect(brief(await verify())).toMatchObject([['job_missing', expect.any(String)]]);
  });
});

describe('replaying forged histories', () => {
  /** Writes history that the product never would, in the unsealed end of the log. */
  async function forge(events: [type: string, from: string | null, to: string | null, job: number, target?: string][]) {
    const { db, schema } = context;
    await tamper('select 1');
    const ids = events.map(([, , , job]) => `00000000-0000-7000-8000-00000000000${job}`);
    for (const id of new Set(ids)) {
      const last = events.findLast((_, i) => ids[i] === id)?.[2] ?? 'QUEUED';
      const target = events.find((_, i) => ids[i] === id)?.[4] ?? null;
      const owned = ['RUNNING', 'CLAIMED'].includes(last);
      await db.query(
        `insert into ${schema}.jobs (id, status, type, target_id, lane_head, lane_rank, payload, finished_at, held_since, lease_id, lease_owner)
         values ($1, $2, 'forged', $3, $4, null, '{}', case when $5 then now() end, case when $6 then now() end, case when $4 then $1::uuid end, 'w')`,
        [
          id,
          last,
          target,
          target === null || owned,
          ['SUCCESS', 'CANCELED', 'ERROR', 'PARTIAL'].includes(last),
          ['PAUSED', 'ERROR'].includes(last),
        ],
      );
      if (!owned) continue;
      await db.query(
        `insert into ${schema}.leases (id, kind, owner, job_ids, ttl_seconds, expires_at) values ($1, 'local', 'w', array[$1::uuid], 60, now())`,
        [id],
      );
      undo.push(() => loseLease(context, id));
    }
    for (const [i, [type, from, to, , target]] of events.entries()) {
      await db.query(
        `insert into ${schema}.events (type, job_id, target_id, from_status, to_status, actor) values ($1, $2, $3, $4, $5, 'test')`,
        [type, ids[i], target ?? null, from, to],
      );
    }
    return (await verify()).violations;
  }

  const enqueued = (job: number, target?: string) =>
    ['job.enqueued', null, 'QUEUED', job, target] as [string, null, string, number, string?];
  const started = (job: number, target?: string) =>
    ['job.started', 'QUEUED', 'RUNNING', job, target] as [string, string, string, number, string?];
  const completed = (job: number, target?: string) =>
    ['job.completed', 'RUNNING', 'SUCCESS', job, target] as [string, string, string, number, string?];

  it('accepts valid histories', async () => {
    expect(
      await forge([enqueued(1, 'x'), started(1, 'x'), completed(1, 'x'), enqueued(2, 'x'), started(2, 'x')]),
    ).toEqual([]);
  });

  it('refuses a step that is not a transition', async () => {
    expect(await forge([enqueued(1), ['job.completed', 'QUEUED', 'SUCCESS', 1]])).toMatchObject([
      { kind: 'job_history' },
    ]);
  });

  it('refuses a step from a status that the job did not have', async () => {
    const violations = await forge([enqueued(1), ['job.completed', 'RUNNING', 'SUCCESS', 1]]);
    expect(violations).toMatchObject([
      { kind: 'job_history', detail: expect.stringMatching(/from RUNNING, but the job was QUEUED/) },
    ]);
  });

  it('refuses a second end', async () => {
    const violations = await forge([enqueued(1), started(1), completed(1), completed(1)]);
    expect(violations.some((violation) => /after the job ended/.test(violation.detail))).toBe(true);
  });

  it('refuses a history without a beginning', async () => {
    expect(await forge([started(1), completed(1)])).toMatchObject([
      { kind: 'job_history', detail: expect.stringMatching(/^begins with/) },
    ]);
  });

  it('finds overlapping attempts of one target', async () => {
    const violations = await forge([
      enqueued(1, 'x'),
      enqueued(2, 'x'),
      started(1, 'x'),
      started(2, 'x'),
      completed(1, 'x'),
    ]);
    expect(violations).toMatchObject([{ kind: 'lane_overlap', targetId: 'x' }]);
  });

  it('finds a start while the lane is held', async () => {
    const violations = await forge([
      enqueued(1, 'x'),
      enqueued(2, 'x'),
      started(1, 'x'),
      ['job.failed', 'RUNNING', 'ERROR', 1, 'x'],
      started(2, 'x'),
    ]);
    expect(violations).toMatchObject([
      { kind: 'lane_order', detail: expect.stringMatching(/is ERROR and has the lane/) },
    ]);
  });

  it('finds a start out of order', async () => {
    const violations = await forge([enqueued(1, 'x'), enqueued(2, 'x'), started(2, 'x'), completed(2, 'x')]);
    expect(violations).toMatchObject([{ kind: 'lane_order', detail: expect.stringMatching(/was enqueued earlier/) }]);
  });
});

describe('retention and the command', () => {
  it('distinguishes what retention removed from tampering', async () => {
    const { db, schema } = context;
    await tamper('select 1');
    await ageSeals(context, 100);
    expect(await pruneEvents(db, schema, { olderThanSeconds: 86_400 * 90 })).toMatchObject({ complete: true });
    const found = await verify();
    expect(found.violations).toEqual([]);
    expect(found.seals).toMatchObject({ seals: 0, sealedEvents: 0, lastPrune: { olderThanSeconds: 86_400 * 90 } });
    expect(found.seals.prunedSeals).toBeGreaterThan(0);
    await writeEvent(db, schema);
    await seal();
    expect(await verify()).toMatchObject({ violations: [], seals: { sealedEvents: 1 } });
  });

  it('seals new events before it continues with old ones', async () => {
    const { db, schema } = context;
    await tamper('select 1');
    await ageSeals(context, 100);
    await writeEvent(db, schema);
    const pruned = await pruneEvents(db, schema, { olderThanSeconds: 86_400 * 90, maxSteps: 1 });
    expect(pruned).toMatchObject({ complete: false });
    expect(await verify()).toMatchObject({ violations: [], seals: { sealedEvents: 1 } });
  });

  async function run(...args: string[]) {
    let out = '';
    let err = '';
    const code = await runCli(args, {
      env: { DATABASE_URL: context.url },
      out: (text) => {
        out += text;
      },
      err: (text) => {
        err += text;
      },
    });
    return { code, out, err };
  }

  it('exits with 0, or with 1 and the names of the violations', async () => {
    const good = await run('verify');
    expect(good).toMatchObject({ code: 0, out: expect.stringMatching(/^acme: ok/) });
    const anchor = /anchor (\S+)/.exec(good.out)?.[1] ?? '';
    expect((await run('verify', '--tenant', 'acme', '--anchor', anchor)).code).toBe(0);
    expect((await run('verify', '--anchor', 'x')).code).toBe(2);
    const event = await eventOf('target.paused');
    await tamper(`delete from ${context.schema}.events where xid = $1 and seq = $2`, [event.xid, event.seq]);
    const bad = await run('verify', '--tenant', 'acme', '--json');
    expect(bad.code).toBe(1);
    expect(JSON.parse(bad.out)).toMatchObject([
      { tenant: 'acme', ok: false, faults: [{ kind: 'event_missing', event: event.key }] },
    ]);
  });
});
