// The SQL function `enqueue` of a tenant's schema: for programs in any language, with the rows, events and refusals of an
// enqueue in TypeScript, and for roles that may do nothing else.
import { randomBytes } from 'node:crypto';
import pg from 'pg';
import { afterAll, beforeAll, expect, onTestFinished, test } from 'vitest';
import { z } from 'zod';
import { quoteSchema } from '../../../../server/database/identifiers.ts';
import {
  migrationsDirectory,
  readMigrations,
  statementsFor,
} from '../../../../server/database/migrations/migration-files.ts';
import { createLeasehold, type EnqueueOptions, type Leasehold } from '../../../../server/embed/index.ts';
import { queueDueJobs } from '../../../../server/jobs/finish/due-jobs.ts';
import { jobColumns, sqlName } from '../../../../server/jobs/model/columns.ts';
import { defineJob } from '../../../../server/worker/handlers/define-job.ts';
import { eventually } from '../../../support/eventually.ts';
import { checkInvariants } from '../../../support/model/invariants.ts';
import { addTenant, directUrl, listenSettings, useTenant } from '../../../support/postgres/database.ts';

const context = useTenant();
const plain = defineJob({ type: 'plain', payload: z.unknown(), run: () => 'done' });
const rich = defineJob({
  type: 'rich',
  retry: { attempts: 4, kind: 'fixed', delaySeconds: 3, on: ['BUSY'] },
  timeoutSeconds: 90,
  onError: 'continue',
  phases: [
    { name: 'one', run: () => 1 },
    { name: 'two', run: () => 2 },
  ],
});
let running = 0;
let maxRunning = 0;
const limited = defineJob({
  type: 'limited',
  limits: [{ name: 'account', concurrency: 1, key: 'payload.account' }],
  run: async ({ payload }) => {
    // Other tests leave jobs with other keys, which may run beside these.
    if ((payload as { account: number }).account !== 7) return;
    running += 1;
    maxRunning = Math.max(maxRunning, running);
    await new Promise((resolve) => setTimeout(resolve, 5));
    running -= 1;
  },
});
const inAnHour = new Date(Date.now() + 3_600_000);
/** Of its own type: a worker that runs it changes nothing that other tests compare. */
const announced = defineJob({ type: 'announced', payload: z.unknown(), run: () => 'done' });
/** Not started: nothing changes a job behind the tests' back. */
let sender: Leasehold;
let pool: pg.Pool;

const create = () => createLeasehold({ databaseUrl: context.url, jobs: [plain, rich, limited], logger: false });

beforeAll(async () => {
  pool = new pg.Pool({ connectionString: context.url, max: 4 });
  const publisher = await create();
  await publisher.start();
  await publisher.stop();
  sender = await create();
  for (const slug of ['one', 'two']) {
    await addTenant(context.db, slug);
    const limits = { slow: { queue: 'slow', rate: 5, key: 'author' } };
    await sender.tenants.configure(slug, { remote_job_types: ['elsewhere'], limits });
    for (const idempotencyKey of ['before', 'before too']) {
      await sender.enqueue(slug, plain, {}, { idempotencyKey, runAt: inAnHour });
    }
  }
});
afterAll(async () => {
  await sender.stop();
  await pool.end();
  await checkInvariants(context);
});

/** `$n` for each, by the name of the argument. */
async function call(db: Pick<pg.Pool, 'query'>, schema: string, args: Record<string, unknown>): Promise<string> {
  const names = Object.keys(args).map((name, i) => `${name} => $${i + 1}`);
  const { rows } = await db.query(`select "${schema}".enqueue(${names.join(', ')}) as id`, Object.values(args));
  return rows[0].id;
}

const refusal = (work: Promise<unknown>) => work.then(() => undefined).catch((error) => [error.code, error.hint]);

test('a job exists after the commit, and runs, within its limits', async () => {
  // No poll within the time of the test: the commit announces the job.
  const settings = { pollIntervalSeconds: 3600, sweepIntervalSeconds: 3600, ...listenSettings(context) };
  const worker = await createLeasehold({
    databaseUrl: context.url,
    jobs: [announced, limited],
    logger: false,
    settings,
  });
  onTestFinished(() => worker.stop({ graceSeconds: 0 }));
  await worker.start();
  const client = await pool.connect();
  onTestFinished(() => client.release());
  await client.query('begin');
  const { rows } = await client.query(
    `select tenant_acme.enqueue('announced', '{"invoiceId":"7"}', target => 'acme') as id`,
  );
  expect(rows[0].id).toMatch(/^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab]/);
  const status = async () =>
    (await context.db.query<{ status: string }>('select status from tenant_acme.jobs where id = $1', [rows[0].id]))[0]
      ?.status;
  expect(await status()).toBeUndefined();
  await client.query('commit');
  await eventually(async () => expect(await status()).toBe('SUCCESS'));
  const ids = await Promise.all(
    Array.from({ length: 8 }, () => call(pool, 'tenant_acme', { type: 'limited', payload: '{"account":7.0}' })),
  );
  const after = { type: 'announced', after: ids, on_failure: 'continue', target: 'last' };
  const last = await call(pool, 'tenant_acme', after);
  await eventually(async () => {
    const jobs = await context.db.query<{ status: string }>('select status from tenant_acme.jobs where id = any($1)', [
      [...ids, last],
    ]);
    expect(jobs.map((job) => job.status)).toEqual(Array(9).fill('SUCCESS'));
  });
  expect(maxRunning).toBe(1);
  const order = await context.db.query<{ late: boolean }>(
    `select started_at >= (select max(finished_at) from tenant_acme.jobs where id = any($1)) as late
       from tenant_acme.jobs where id = $2`,
    [ids, last],
  );
  expect(order).toEqual([{ late: true }]);
});

/** Everything that is stored, except what differs between any two jobs. */
async function stored(schema: string, id: string) {
  const ofItsOwn = ['id', 'request_hash', 'created_at', 'updated_at', 'run_at', 'expires_at', 'client_request_id'];
  const columns = jobColumns.map(sqlName).filter((name) => !ofItsOwn.includes(name));
  const { db } = context;
  const [job] = await db.query(
    `select ${columns.join(', ')}, updated_at = created_at as untouched,
            round(extract(epoch from run_at - created_at) / 60) as run_at, expires_at - created_at as expires,
            request_hash is null as without_hash, client_request_id is null as without_key
       from ${schema}.jobs where id = $1`,
    [id],
  );
  const phases = await db.query(
    `select p.*, null as job_id from ${schema}.phases p where job_id = $1 order by position`,
    [id],
  );
  const events = await db.query(
    `select type, target_id, from_status, to_status, attempt, lease_id, data, split_part(actor, ':', 1) as actor
       from ${schema}.events where job_id = $1 order by seq`,
    [id],
  );
  const edges = await db.query(
    `select d.position, d.step, d.on_failure, d.concurrency, d.state, j.client_request_id
       from ${schema}.dependencies d join ${schema}.jobs j on j.id = d.after_id where d.job_id = $1 order by d.position`,
    [id],
  );
  const held = await db.query(
    `select key, until, held_until is null as endless from ${schema}.unique_keys where job_id = $1`,
    [id],
  );
  return { job, phases, events, edges, held };
}

const anHourAgo = new Date(Date.now() - 3_600_000);
test.each<[string, string, unknown, EnqueueOptions, Record<string, unknown>]>([
  ['a plain job', 'plain', { a: [1, 'ü', null] }, {}, {}],
  ['no payload', 'plain', null, {}, {}],
  ['a job with a lane', 'plain', 1, { targetId: 'desk' }, { target: 'desk' }],
  ['defaults of the type', 'rich', {}, { targetId: 'desk' }, { target: 'desk' }],
  ['a later job', 'rich', {}, { runAt: inAnHour }, { run_at: inAnHour }],
  ['a later job with a lane', 'plain', {}, { runAt: inAnHour, targetId: 'x' }, { run_at: inAnHour, target: 'x' }],
  ['a job of the past', 'plain', {}, { runAt: anHourAgo }, { run_at: anHourAgo }],
  ['a job that limits count', 'plain', {}, { queue: 'slow', author: 'ann' }, { queue: 'slow', author: 'ann' }],
  ['limits of the type', 'limited', { account: 1.5 }, {}, {}],
  ['a unique job', 'plain', {}, { unique: { key: 'u' } }, { unique_key: 'u' }],
  [
    'a unique job of a minute',
    'plain',
    {},
    { unique: { key: 'minute', until: 60, conflict: 'debounce' } },
    { unique_key: 'minute', unique_until: '60', unique_conflict: 'debounce' },
  ],
  [
    'a job that runs after others',
    'rich',
    {},
    { after: ['before too', 'before', 'before'], targetId: 'desk', runAt: inAnHour },
    { after: ['before too', 'before', 'before'], target: 'desk', run_at: inAnHour },
  ],
  [
    'a job that continues if others fail',
    'plain',
    {},
    { after: [{ job: 'before', onFailure: 'continue' }] },
    { after: ['before'], on_failure: 'continue' },
  ],
  ['a type of remote workers', 'elsewhere', {}, { priority: 'LOW' }, { priority: 'LOW' }],
  [
    'every option',
    'rich',
    'text',
    {
      targetId: 'desk',
      priority: 'URGENT',
      idempotencyKey: 'k',
      queue: 'q',
      maxAttempts: 2,
      timeoutSeconds: 1.5,
      expiresInSeconds: 60,
      onError: 'block',
      author: 'ada',
    },
    {
      target: 'desk',
      priority: 'URGENT',
      idempotency_key: 'k',
      queue: 'q',
      max_attempts: 2,
      timeout_seconds: 1.5,
      expires_in_seconds: 60,
      on_error: 'block',
      author: 'ada',
    },
  ],
])('stores the same as TypeScript: %s', async (_, type, payload, options, args) => {
  const schemas = [quoteSchema('tenant_one'), quoteSchema('tenant_two')] as const;
  const client = await pool.connect();
  onTestFinished(() => client.release());
  await client.query('begin');
  const { id } = await sender.enqueue('one', type, payload, { ...options, tx: client });
  const other = await call(client, 'tenant_two', { type, payload: JSON.stringify(payload), ...args });
  await client.query('commit');
  const compare = async () => {
    const [byTypeScript, bySql] = [await stored(schemas[0], id), await stored(schemas[1], other)];
    expect(byTypeScript.events.map(({ actor }) => actor).slice(0, 1)).toEqual(['host']);
    expect(bySql.events.map(({ actor }) => actor).slice(0, 1)).toEqual(['sql']);
    const withoutActors = ({ events, ...rest }: typeof bySql) => ({
      ...rest,
      events: events.map((event) => ({ ...event, actor: '' })),
    });
    expect(withoutActors(bySql)).toEqual(withoutActors(byTypeScript));
    return bySql.job?.status;
  };
  const before = await compare();
  for (const schema of schemas) await queueDueJobs(context.db, schema, 'test');
  const after = await compare();
  if ('after' in args) return expect([before, after]).toEqual(['WAITING', 'WAITING']);
  expect([before, after]).toEqual(
    'run_at' in args && args.run_at === inAnHour
      ? ['PENDING', 'PENDING']
      : [args.target ? 'PENDING' : 'QUEUED', 'QUEUED'],
  );
});

test('two concurrent transactions with the same key create one job', async () => {
  const args = { type: 'plain', payload: '{"b":1,"a":2}', idempotency_key: 'once', target: 'once' };
  const [one, two] = [await pool.connect(), await pool.connect()];
  onTestFinished(() => {
    for (const client of [one, two]) client.release();
  });
  await one.query('begin');
  const id = await call(one, 'tenant_acme', args);
  expect(await call(one, 'tenant_acme', { ...args, payload: '{"a":2, "b":1}' })).toBe(id);
  const waiting = call(two, 'tenant_acme', args);
  await one.query('commit');
  expect(await waiting).toBe(id);
  expect(await refusal(call(pool, 'tenant_acme', { ...args, target: 'other' }))).toEqual([
    'LH005',
    'IDEMPOTENCY_CONFLICT',
  ]);
});

test('a job that is enqueued after the commit is behind it in the lane', async () => {
  const ids: string[] = [];
  const client = await pool.connect();
  onTestFinished(() => client.release());
  await client.query('begin');
  for (let i = 0; i < 5; i++) ids.push(await call(client, 'tenant_one', { type: 'plain', target: 'order' }));
  await client.query('commit');
  ids.push((await sender.enqueue('one', plain, {}, { targetId: 'order' })).id);
  const line = await context.db.query<{ id: string }>(
    `select id from tenant_one.jobs where target_id = 'order' order by lane_head desc, lane_rank, lane_seq`,
  );
  expect(line.map((row) => row.id)).toEqual(ids);
});

const deep = (levels: number) => `${'['.repeat(levels)}${']'.repeat(levels)}`;
test.each<[string, Record<string, unknown>, string[] | undefined]>([
  ['no type', { type: null }, ['LH002', 'INVALID_FIELD']],
  ['a type with a line break', { type: 'a\nb' }, ['LH002', 'INVALID_FIELD']],
  ['an unknown type', { type: 'nobody.knows' }, ['LH003', 'UNKNOWN_JOB_TYPE']],
  ['a target of dots', { target: '..' }, ['LH002', 'INVALID_FIELD']],
  ['a target with a space at its end', { target: 'a ' }, ['LH002', 'INVALID_FIELD']],
  ['a long target', { target: 'x'.repeat(201) }, ['LH002', 'INVALID_FIELD']],
  ['a priority of its own', { priority: 'urgent' }, ['LH002', 'INVALID_FIELD']],
  ['no priority', { priority: null }, ['LH002', 'INVALID_FIELD']],
  ['an empty key', { idempotency_key: '' }, ['LH002', 'INVALID_FIELD']],
  ['no attempts', { max_attempts: 0 }, ['LH002', 'INVALID_FIELD']],
  ['a timeout that is no number', { timeout_seconds: Number.NaN }, ['LH002', 'INVALID_FIELD']],
  ['an endless run_at', { run_at: 'infinity' }, ['LH002', 'INVALID_FIELD']],
  ['a large payload', { payload: JSON.stringify('x'.repeat(1_048_577)) }, ['LH002', 'INVALID_FIELD']],
  ['a deep payload', { payload: deep(101) }, ['LH002', 'INVALID_FIELD']],
  ['a payload as deep as allowed', { payload: deep(100) }, undefined],
  ['a payload with __proto__', { payload: '{"a":[{"__proto__":1}]}' }, ['LH002', 'INVALID_FIELD']],
  ['a number beyond doubles', { payload: '[1e400]' }, ['LH002', 'INVALID_FIELD']],
  ['an unknown job before', { after: ['nobody'] }, ['LH002', 'INVALID_FIELD']],
  ['no name of a job before', { after: [null] }, ['LH002', 'INVALID_FIELD']],
  ['no job before', { after: [] }, undefined],
  ['a policy of its own', { on_failure: 'stop' }, ['LH002', 'INVALID_FIELD']],
  ['an empty unique key', { unique_key: '' }, ['LH002', 'INVALID_FIELD']],
  ['a unique key without an end', { unique_key: 'a', unique_until: 'never' }, ['LH002', 'INVALID_FIELD']],
  ['a unique key for too long', { unique_key: 'a', unique_until: '31536000001' }, ['LH002', 'INVALID_FIELD']],
  ['a conflict of its own', { unique_key: 'a', unique_conflict: 'fail' }, ['LH002', 'INVALID_FIELD']],
  ['a number of doubles', { payload: '[-1e308, 1e-300]' }, undefined],
])('refuses %s', async (_, args, expected) => {
  expect(await refusal(call(pool, 'tenant_acme', { type: 'plain', ...args }))).toEqual(expected);
});

test('limits and suspension of the tenant apply', async () => {
  await addTenant(context.db, 'sqllimits');
  await sender.tenants.configure('sqllimits', { max_queued: 2 });
  const later = { type: 'plain', run_at: inAnHour };
  const first = await call(pool, 'tenant_sqllimits', { ...later, idempotency_key: 'first' });
  await call(pool, 'tenant_sqllimits', later);
  expect(await refusal(call(pool, 'tenant_sqllimits', later))).toEqual(['LH006', 'QUEUE_FULL']);
  expect(await call(pool, 'tenant_sqllimits', { ...later, idempotency_key: 'first' })).toBe(first);
  await context.db.query(`update leasehold.tenants set status = 'SUSPENDED' where slug = 'sqllimits'`);
  expect(await refusal(call(pool, 'tenant_sqllimits', later))).toEqual(['LH004', 'TENANT_SUSPENDED']);
});

test('a role with nothing but EXECUTE can enqueue, and nothing else', async () => {
  const role = `app_${randomBytes(6).toString('hex')}`;
  await context.db.query(`create role ${role} login password 'secret'`);
  onTestFinished(async () => {
    await context.db.query(`drop owned by ${role}`);
    await context.db.query(`drop role ${role}`);
  });
  // What it sets is of its session.
  const url = new URL(directUrl(context));
  url.username = role;
  url.password = 'secret';
  const app = new pg.Client(url.href);
  await app.connect();
  onTestFinished(() => app.end());
  const denied = ['42501', undefined];
  expect(await refusal(call(app as never, 'tenant_acme', { type: 'plain' }))).toEqual(denied);
  await context.db.query(`grant usage on schema tenant_acme to ${role}`);
  expect(await refusal(call(app as never, 'tenant_acme', { type: 'plain' }))).toEqual(denied);
  await context.db.query(`grant execute on function tenant_acme.enqueue to ${role}`);
  // What the caller puts into its own search path, or its temporary schema, is not used.
  await app.query('create temp table jobs (id uuid)');
  await app.query(`set search_path = pg_temp, public`);
  const id = await call(app as never, 'tenant_acme', { type: 'plain', payload: '{"by":"role"}', target: 'role' });
  const [event] = await context.db.query(`select actor from tenant_acme.events where job_id = $1 order by seq`, [id]);
  expect(event).toEqual({ actor: `sql:${role}` });
  for (const statement of [
    'select * from tenant_acme.jobs',
    'select * from leasehold.tenants',
    'delete from tenant_acme.events',
    `select tenant_acme.assert_lease('${id}', '${id}')`,
    `select tenant_acme.limit_keys('a', 'a', false, null, null, '{}')`,
    `select tenant_acme.lock_unique_key('a', 'a')`,
    `select tenant_acme.canonical_json('{}')`,
    'create table tenant_acme.mine (id int)',
  ]) {
    expect(await refusal(app.query(statement))).toEqual(denied);
  }
});

test('a role that may execute the earlier version of the function may execute this one', async () => {
  const role = `app_${randomBytes(6).toString('hex')}`;
  const migrations = await readMigrations(migrationsDirectory('tenant'));
  const statements = (name: string) => statementsFor(migrations.find((one) => one.name === name)!, context.schema);
  const undone = new Error('rolled back');
  const upgrade = context.db.transaction(async (tx) => {
    for (const name of ['enqueue', 'canonical_json', 'limit_keys', 'lock_unique_key']) {
      await tx.query(`drop function ${context.schema}.${name}`);
    }
    await tx.query(`create role ${role}`);
    for (const statement of statements('0011_enqueue_function')) await tx.query(statement);
    await tx.query(`grant execute on function ${context.schema}.enqueue to ${role} with grant option`);
    for (const statement of statements('0022_enqueue_options')) await tx.query(statement);
    const granted = await tx.query(
      `select a.grantee = 0 as everyone, a.is_grantable
         from pg_proc p cross join lateral aclexplode(p.proacl) a
        where p.oid = '${context.schema}.enqueue'::regproc and a.grantee <> p.proowner`,
    );
    expect(granted).toEqual([{ everyone: false, is_grantable: true }]);
    throw undone;
  });
  await expect(upgrade).rejects.toBe(undone);
});
