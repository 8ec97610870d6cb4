// The ways to enqueue a job mean the same by the same request: HTTP and the SQL function of a tenant's schema share
// idempotency keys, unique keys, limits and `after`.
import fc from 'fast-check';
import { beforeAll, expect, test } from 'vitest';
import { schedulerRoutes } from '../../../../server/daemon/create-api.ts';
import { StepGroupCommit } from '../../../../server/jobs/attempt/step-group-commit.ts';
import { CommitSignals } from '../../../../server/jobs/commit-signals.ts';
import { enqueueInCallersTransaction } from '../../../../server/jobs/enqueue/enqueue.ts';
import { QueueLimit } from '../../../../server/jobs/enqueue/enqueue-limits.ts';
import { publishJobTypes } from '../../../../server/jobs/enqueue/job-types.ts';
import { limitKeysOf } from '../../../../server/jobs/limits/limit-keys.ts';
import { loadConfig } from '../../../../server/kernel/config.ts';
import { canonicalJson } from '../../../../server/kernel/json/json-text.ts';
import { createLogger } from '../../../../server/kernel/logger.ts';
import { ClaimWaiters } from '../../../../server/scheduler/claim-waiters.ts';
import { limitsOf } from '../../../../server/tenants/named-settings.ts';
import { updateTenantSettings } from '../../../../server/tenants/tenant-store.ts';
import { jobTypes as known, useControl } from '../../../support/http/control.ts';
import { checkInvariants } from '../../../support/model/invariants.ts';

const waiters = new ClaimWaiters(3_600_000, createLogger('silent'));
const control = useControl(({ db }) =>
  schedulerRoutes({
    config: loadConfig({}),
    waiters,
    signals: new CommitSignals(),
    logger: createLogger('silent'),
    queueLimit: new QueueLimit(db),
    stepCommits: new StepGroupCommit(db),
    jobTypes: known,
  }),
);
const settings = {
  account: { queue: 'crowd', concurrency: 0, key: 'payload.account' },
  'by-author': { queue: 'q', rate: 1, key: 'author' },
  deep: { queue: 'q', rate: 1, key: 'payload.a.b' },
  own: { rate: 2, queue: 'q' },
};
/** In the order in which daemons read them: of one name, the last counts. */
const declared = {
  b: { shared: { concurrency: 2, key: 'payload.b' }, other: { concurrency: 1, key: 'target_id' } },
  zeta: { own: { rate: 1 }, shared: { concurrency: 1, key: 'payload.a' } },
};
const limits = limitsOf(settings, declared);

beforeAll(async () => {
  await publishJobTypes(control.db, known);
  await control.db.query(
    `insert into leasehold.job_types (type, limits) select key, value from jsonb_each($1::jsonb)`,
    [JSON.stringify(declared)],
  );
  await updateTenantSettings(control.db, control.tenant.slug, { limits: settings });
  await control.app.deps.registry.refresh();
});

/** `select tenant.enqueue(…)`, with the arguments by their names. */
async function call(args: Record<string, unknown>): Promise<string> {
  const names = Object.keys(args).map((name, i) => `${name} => $${i + 1}`);
  const [row] = await control.db.query<{ id: string }>(
    `select ${control.schema}.enqueue(${names.join(', ')}) as id`,
    Object.values(args),
  );
  return row?.id as string;
}

const refusal = (work: Promise<unknown>) =>
  work.then(() => undefined).catch(({ code, message }) => `${code} ${message}`);
const inAnHour = new Date(Date.now() + 3_600_000).toISOString();

test('the SQL function writes the canonical JSON of requests as TypeScript does', async () => {
  const written = async (values: string[]) =>
    (
      await control.db.query<{ text: string }>(
        `select ${control.schema}.canonical_json(g.value::jsonb) as text
           from unnest($1::text[]) with ordinality as g(value, n) order by g.n`,
        [values],
      )
    ).map(({ text }) => text);
  const storable = (value: unknown) => !/\\u0000|\\ud[89a-f]/.test(JSON.stringify(value));
  const numbers = fc.sample(fc.double({ noNaN: true, noDefaultInfinity: true }), { numRuns: 2000, seed: 1 });
  const integers = numbers.map((n) =>
    Math.trunc(n * 10 ** (15 + (Math.abs(n * 7) % 8) - Math.log10(Math.abs(n) || 1))),
  );
  const values = fc.sample(fc.jsonValue({ maxDepth: 4 }).filter(storable), { numRuns: 500, seed: 1 });
  const given = [
    ...numbers,
    ...integers,
    ...values,
    ...[
      0,
      -0,
      1e21,
      1e20,
      123456789012345680000,
      1e-6,
      1e-7,
      1.5e-7,
      5e-324,
      1.7976931348623157e308,
      2 ** 53,
      0.1 + 0.2,
    ],
    { '10': 1, '9': 2, a: 3, '-1': 4, '01': 5, ä: 6, Z: 7, '4294967294': 8, '4294967295': 9, '': 10 },
    ['\u0001\u001f\u007f"\\/\b\f\n\r\t\u2028ü😀'],
  ];
  expect(await written(given.map((value) => JSON.stringify(value)))).toEqual(
    given.map((value) => canonicalJson(value)),
  );
  expect(
    await written(['1.0', '1.50', '-0.0', '1e2', '1e-400', '12345678901234567890', '{"b":1.0, "a":[2.0]}']),
  ).toEqual(['1', '1.5', '0', '100', '0', '12345678901234567000', '{"a":[2],"b":1}']);
});

interface Same {
  http: Record<string, unknown>;
  sql: Record<string, unknown>;
}
const requests: [string, Same][] = [
  ['no payload', { http: {}, sql: {} }],
  ['defaults that are written out', { http: { payload: null, priority: 'NORMAL', queue: 'default' }, sql: {} }],
  [
    'an object',
    { http: { payload: { b: 1.5, a: [1, 'ü', null] } }, sql: { payload: '{"a": [1.0, "ü", null], "b": 1.50}' } },
  ],
  [
    'every option',
    {
      http: {
        payload: 'text',
        target_id: 'desk',
        run_at: inAnHour,
        priority: 'HIGH',
        queue: 'q',
        max_attempts: 2,
        timeout_seconds: 1.5,
        expires_in_seconds: 60,
        on_error: 'continue',
        author: 'ada',
        unique: { key: 'every', until: 60 },
      },
      sql: {
        payload: '"text"',
        target: 'desk',
        run_at: inAnHour,
        priority: 'HIGH',
        queue: 'q',
        max_attempts: 2,
        timeout_seconds: 1.5,
        expires_in_seconds: 60,
        on_error: 'continue',
        author: 'ada',
        unique_key: 'every',
        unique_until: '60',
      },
    },
  ],
];

test.each(requests)('a request with the same key is one job by HTTP and by SQL: %s', async (name, { http, sql }) => {
  const type = 'demo.echo';
  for (const first of ['http', 'sql'] as const) {
    // Each run has keys of its own.
    const key = `${first}: ${name}`;
    const own = (asked: Same['http'] & { unique?: object }) =>
      asked.unique === undefined ? asked : { ...asked, unique: { ...asked.unique, key } };
    const ownSql = 'unique_key' in sql ? { ...sql, unique_key: key } : sql;
    const byHttp = (more = {}) =>
      control.post('/api/jobs', { type, ...own(http), ...more }, { 'Idempotency-Key': key });
    const bySql = (more = {}) => call({ type, ...ownSql, ...more, idempotency_key: key });
    const id = first === 'http' ? (await byHttp()).body.id : await bySql();
    expect(await byHttp()).toMatchObject({ status: 200, body: { id } });
    expect(await bySql()).toBe(id);
    expect(await byHttp({ payload: 'other' })).toMatchObject({ status: 409, body: { code: 'IDEMPOTENCY_CONFLICT' } });
    expect(await refusal(bySql({ payload: '"other"' }))).toMatch(/^LH005/);
    expect(await refusal(bySql({ target: 'elsewhere' }))).toMatch(/^LH005/);
  }
});

test('a key of the earlier function is still recognized', async () => {
  const id = await call({ type: 'demo.echo', payload: '{"a":1}', idempotency_key: 'earlier' });
  await control.db.query(
    `update ${control.schema}.jobs
        set request_hash = 'sql:' || encode(sha256(convert_to(jsonb_build_array('demo.echo', '{"a":1}'::jsonb, null, null,
              'NORMAL', 'default', null, null, null, null, null)::text, 'UTF8')), 'base64')
      where id = $1`,
    [id],
  );
  expect(await call({ type: 'demo.echo', payload: '{"a":1}', idempotency_key: 'earlier' })).toBe(id);
  expect(await refusal(call({ type: 'demo.echo', payload: '{"a":2}', idempotency_key: 'earlier' }))).toMatch(/^LH005/);
});

test('40 callers of four APIs create one job with a unique key; the last payload counts, with its limits', async () => {
  const type = 'demo.echo';
  const unique = { key: 'crowd', until: 'finished', conflict: 'replace' } as const;
  const callers: ((n: number) => Promise<string>)[] = [
    async (account) =>
      (await control.post('/api/jobs', { type, queue: 'crowd', payload: { account }, unique })).body.id,
    (account) =>
      call({
        type,
        queue: 'crowd',
        payload: JSON.stringify({ account }),
        unique_key: unique.key,
        unique_conflict: unique.conflict,
      }),
    async (account) => {
      const body = { addon_id: 'crowd', job_type: type, payload: { account }, unique };
      const answer = await control.post('/api/scheduler/jobs/submit', body);
      expect(answer.headers.get('unique-job')).toBe(answer.status === 201 ? null : 'replaced');
      return answer.body.job.job_id;
    },
    async (account) => {
      const job = {
        type,
        queue: 'crowd',
        payload: { account },
        unique: { ...unique, limits },
        limitKeys: ['type:demo.echo', `account:${account}`],
      };
      const made = await control.db.transaction((tx) => enqueueInCallersTransaction(tx, control.tenant, [job], 'test'));
      return made[0]?.job.id as string;
    },
  ];
  const ids = await Promise.all(Array.from({ length: 40 }, (_, n) => callers[n % callers.length]?.(n)));
  expect(new Set(ids).size).toBe(1);
  const id = ids[0] as string;
  for (const [n, enqueue] of callers.entries()) {
    expect(await enqueue(100 + n)).toBe(id);
    const [job] = await control.db.query<{ payload: object; limit_keys: string[]; gated: boolean; remote: boolean }>(
      `select payload, limit_keys, gated, remote from ${control.schema}.jobs where id = $1`,
      [id],
    );
    const claimant = job?.remote ? 'queue:crowd' : 'type:demo.echo';
    const limit_keys = [claimant, `account:${100 + n}`];
    expect(job).toMatchObject({ payload: { account: 100 + n }, limit_keys, gated: true });
  }
  expect(await call({ type, unique_key: 'crowd', payload: '{"account":"x"}' })).toBe(id);
  await checkInvariants(control);
});

test('the SQL function counts a job under the keys that TypeScript computes', async () => {
  const jobs = ['zeta', 'b', 'demo.echo', 'ö'.repeat(100)].flatMap((type) =>
    [{}, 'text', { a: { b: 1.5 } }, { a: 'x'.repeat(65), b: true }, { a: [1], b: 1e21 }, { a: null, b: -0 }].flatMap(
      (payload) => [
        { type, payload, queue: 'q', remote: true, targetId: 't', author: 'ann' },
        { type, payload, queue: 'default', remote: false, targetId: null, author: null },
      ],
    ),
  );
  const rows = await control.db.query<{ keys: string[] | null }>(
    `select ${control.schema}.limit_keys(g.type, g.queue, g.remote, g."targetId", g.author, g.payload) as keys
       from jsonb_to_recordset($1::jsonb)
         as g(type text, queue text, remote boolean, "targetId" text, author text, payload jsonb)`,
    [JSON.stringify(jobs)],
  );
  expect(rows.map(({ keys }) => keys)).toEqual(jobs.map((job) => limitKeysOf(limits, job) ?? null));
});

test('submit runs a job after others, and refuses one that does not exist', async () => {
  const submit = (more: object) =>
    control.post('/api/scheduler/jobs/submit', { addon_id: 'default', job_type: 'any', ...more });
  const first = await submit({ client_request_id: 'first' });
  const answer = await submit({ after: ['first', { job: first.body.job.job_id, on_failure: 'cancel' }] });
  expect(answer.body.job).toMatchObject({ state: 'QUEUED', note: 'The job runs after one other job' });
  expect((await control.get(`/api/jobs/${answer.body.job.job_id}`)).body).toMatchObject({ status: 'WAITING' });
  expect(await submit({ after: ['nobody'] })).toMatchObject({ status: 400, body: { field: 'after[0]' } });
});
