import { describe, expect, it } from 'vitest';
import type { Database } from '../../../../server/database/database.ts';
import { RouteGroup } from '../../../../server/http/route.ts';
import { eventually } from '../../../support/eventually.ts';
import { adminKey, useApp } from '../../../support/http/app.ts';
import { useDatabase } from '../../../support/postgres/database.ts';

const context = useDatabase();
const app = useApp(context, ({ db }) => ({ routes: [tableRoutes(db)] }));
const admin = (method: string, path: string, body?: unknown) => app.request(method, path, { key: adminKey, body });
const create = (slug: string, settings?: unknown) =>
  admin('POST', '/api/admin/tenants', { slug, ...(settings ? { settings } : {}) });

function tableRoutes(db: Database): RouteGroup {
  const group = new RouteGroup('Test');
  group.route({
    method: 'get',
    path: '/api/tables',
    summary: 'Read a table of the tenant',
    access: 'read',
    answers: { 200: null },
    handle: ({ tenant }) => db.query(`select count(*) from ${tenant.schema}.jobs`),
  });
  return group;
}

describe('creating a tenant', () => {
  it('answers 201 with the tenant and a first key that works', async () => {
    const made = await create('first', { concurrency: 3 });
    expect(made.status).toBe(201);
    expect(made.body.tenant).toMatchObject({
      slug: 'first',
      schema: 'tenant_first',
      status: 'ACTIVE',
      settings: { concurrency: 3 },
    });
    expect(made.body.key.key).toMatch(/^lh_[0-9a-f]{16}_[0-9a-f]{64}$/);
    expect(made.body.key.scopes).toEqual(['read', 'enqueue', 'control', 'worker', 'admin']);
    const keys = await app.request('GET', '/api/keys', { key: made.body.key.key });
    expect(keys.status).toBe(200);
    expect(keys.body.keys).toHaveLength(1);
    expect(keys.body.keys[0]).not.toHaveProperty('key');
  });

  it('refuses a slug that is taken', async () => {
    await create('twice');
    const again = await create('twice');
    expect(again.status).toBe(409);
    expect(again.body.code).toBe('ALREADY_EXISTS');
  });

  it.each(['', 'Upper', '1st', 'a-b', 'a b', 'a;drop', 'a"b', 'ä', 'x'.repeat(49), '__proto__'])(
    'refuses the slug %j',
    async (slug) => {
      const answer = await create(slug);
      expect(answer.status).toBe(400);
      expect(answer.body).toMatchObject({ code: 'INVALID_FIELD', field: 'slug' });
    },
  );

  it('names unknown and invalid settings', async () => {
    const answer = await create('wrong', { concurency: 1, token_limit: -1, retention: { days: 3 } });
    expect(answer.status).toBe(400);
    expect(answer.body.errors.map((e: { field: string }) => e.field).sort()).toEqual([
      'settings.concurency',
      'settings.retention.days',
      'settings.token_limit',
    ]);
  });

  it('does not touch a schema that Leasehold did not create', async () => {
    await context.db.query('create schema tenant_stranger');
    await context.db.query('create table tenant_stranger.jobs (id int)');
    const answer = await create('stranger');
    expect(answer.status).toBe(409);
    expect(answer.body.code).toBe('CONFLICT');
    expect(
      await context.db.query("select table_name from information_schema.tables where table_schema = 'tenant_stranger'"),
    ).toEqual([{ table_name: 'jobs' }]);
    expect((await admin('GET', '/api/admin/tenants/stranger')).status).toBe(404);
  });

  it('finishes a creation that was interrupted', async () => {
    await context.db.query(
      `insert into leasehold.tenants (id, slug, schema_name, status, settings)
       values (gen_random_uuid(), 'half', 'tenant_half', 'PROVISIONING', '{"capacity_units": 7}')`,
    );
    const answer = await create('half');
    expect(answer.status).toBe(201);
    expect(answer.body.tenant).toMatchObject({ status: 'ACTIVE', settings: { capacity_units: 7 } });
    expect(await context.db.query('select queue, total_units from tenant_half.capacities')).toEqual([
      { queue: '', total_units: 7 },
    ]);
  });

  it('creates it once if five callers request it at once', async () => {
    const answers = await Promise.all(Array.from({ length: 5 }, () => create('race')));
    expect(answers.map((a) => a.status).sort()).toEqual([201, 409, 409, 409, 409]);
  });
});

describe('reading tenants', () => {
  it('pages through all of them by cursor', async () => {
    for (const slug of ['page_a', 'page_b', 'page_c']) await create(slug);
    const seen: string[] = [];
    let cursor: string | null = null;
    do {
      const page = await admin('GET', `/api/admin/tenants?limit=2${cursor ? `&cursor=${cursor}` : ''}`);
      expect(page.status).toBe(200);
      seen.push(...page.body.tenants.map((t: { slug: string }) => t.slug));
      cursor = page.body.next_cursor;
    } while (cursor);
    expect(seen).toEqual([...new Set(seen)].sort());
    expect(seen).toEqual(expect.arrayContaining(['page_a', 'page_b', 'page_c']));
  });

  it('refuses a cursor that it did not make', async () => {
    for (const cursor of ['x', 'W10', Buffer.from('["t","a"]').toString('base64url')]) {
      const answer = await admin('GET', `/api/admin/tenants?cursor=${cursor}`);
      expect(answer.status).toBe(400);
      expect(answer.body.code).toBe('INVALID_CURSOR');
    }
  });

  it('names an unknown or invalid query field', async () => {
    expect((await admin('GET', '/api/admin/tenants?limt=2')).body.field).toBe('query.limt');
    expect((await admin('GET', '/api/admin/tenants?limit=many')).body.field).toBe('query.limit');
    expect((await admin('GET', '/api/admin/tenants?limit=0')).body.field).toBe('query.limit');
  });
});

describe('changing a tenant', () => {
  it('merges settings and mirrors capacities', async () => {
    await create('tuned', { concurrency: 5, capacity_units: 10, queue_capacity_units: { a: 1, b: 2 } });
    const changed = await admin('PATCH', '/api/admin/tenants/tuned', {
      settings: { capacity_units: 20, concurrency: null, queue_capacity_units: { a: null, c: 3 } },
    });
    expect(changed.status).toBe(200);
    expect(changed.body.tenant.settings).toEqual({ capacity_units: 20, queue_capacity_units: { b: 2, c: 3 } });
    expect(await context.db.query('select queue, total_units from tenant_tuned.capacities order by queue')).toEqual([
      { queue: '', total_units: 20 },
      { queue: 'b', total_units: 2 },
      { queue: 'c', total_units: 3 },
    ]);
  });

  it('refuses invalid settings, and changes nothing', async () => {
    await create('steady', { concurrency: 5 });
    const answer = await admin('PATCH', '/api/admin/tenants/steady', { settings: { concurrency: 'many' } });
    expect(answer.status).toBe(400);
    expect(answer.body.field).toBe('settings.concurrency');
    expect((await admin('GET', '/api/admin/tenants/steady')).body.tenant.settings).toEqual({ concurrency: 5 });
  });

  it('suspends: its key may read and not write, until it is activated', async () => {
    const { key } = (await create('resting')).body;
    expect((await admin('POST', '/api/admin/tenants/resting/suspend')).body.tenant.status).toBe('SUSPENDED');
    expect((await app.request('GET', '/api/keys', { key: key.key })).status).toBe(200);
    const write = await app.request('POST', '/api/keys', { key: key.key, body: { name: 'x', scopes: ['read'] } });
    expect(write.status).toBe(403);
    expect(write.body.code).toBe('TENANT_SUSPENDED');
    expect((await admin('POST', '/api/admin/tenants/resting/activate')).body.tenant.status).toBe('ACTIVE');
    const now = await app.request('POST', '/api/keys', { key: key.key, body: { name: 'x', scopes: ['read'] } });
    expect(now.status).toBe(201);
  });
});

describe('deleting a tenant', () => {
  const path = '/api/admin/tenants/doomed';

  it('takes two steps, and its keys end with it', async () => {
    const { key } = (await create('doomed')).body;
    const asked = await admin('DELETE', path);
    expect(asked.status).toBe(202);
    expect((await admin('GET', path)).status).toBe(200);
    const wrong = await admin('DELETE', `${path}?confirm=${'0'.repeat(32)}`);
    expect(wrong.status).toBe(409);
    const done = await admin('DELETE', `${path}?confirm=${asked.body.confirm}`);
    expect(done.status).toBe(200);
    expect((await admin('GET', path)).status).toBe(404);
    expect(await context.db.query("select 1 from pg_namespace where nspname = 'tenant_doomed'")).toEqual([]);
    expect((await app.request('GET', '/api/keys', { key: key.key })).status).toBe(401);
    expect((await create('doomed')).status).toBe(201);
  });

  it('continues when a busy transaction and the deletion wait for each other', async () => {
    await create('deadlocked');
    const { confirm } = (await admin('DELETE', '/api/admin/tenants/deadlocked')).body;
    let deletion: ReturnType<typeof admin> | undefined;
    const busy = context.db.transaction(async (tx) => {
      await tx.query(`insert into tenant_deadlocked.targets (id) values ('t')`);
      deletion = admin('DELETE', `/api/admin/tenants/deadlocked?confirm=${confirm}&force=true`);
      // It has the jobs and waits for the targets; now this one waits for the jobs.
      await eventually(async () => {
        const waiting = await context.db.query(
          `select 1 from pg_locks where not granted and relation = 'tenant_deadlocked.targets'::regclass`,
        );
        expect(waiting).toHaveLength(1);
      });
      await tx.query('select count(*) from tenant_deadlocked.jobs');
    });
    // Whichever of the two the database chooses to end.
    await busy.catch(() => {});
    expect((await deletion)?.status).toBe(200);
  });

  it('answers a request in flight with 403 instead of an error', async () => {
    const made = await create('vanishing');
    // As when the tables go between the check of the key and the statement of the request.
    await context.db.query('drop schema tenant_vanishing cascade');
    await context.db.query(`update leasehold.tenants set status = 'DELETING' where slug = 'vanishing'`);
    const answer = await app.request('GET', '/api/tables', { key: made.body.key.key });
    expect(answer.body).toMatchObject({ status: 403, code: 'TENANT_SUSPENDED', current_status: 'DELETING' });
  });

  it('is refused while a worker has a job, unless forced', async () => {
    await create('busy');
    await context.db.query(
      `insert into tenant_busy.jobs (id, status, type, lane_head, payload, lease_id, lease_owner, attempt)
       values (gen_random_uuid(), 'RUNNING', 't', true, '{}', gen_random_uuid(), 'w', 1)`,
    );
    const { confirm } = (await admin('DELETE', '/api/admin/tenants/busy')).body;
    const refused = await admin('DELETE', `/api/admin/tenants/busy?confirm=${confirm}`);
    expect(refused.status).toBe(409);
    expect(refused.body.running).toBe(1);
    expect((await admin('GET', '/api/admin/tenants/busy')).body.tenant.status).toBe('ACTIVE');
    expect((await admin('DELETE', `/api/admin/tenants/busy?confirm=${confirm}&force=true`)).status).toBe(200);
  });
});
