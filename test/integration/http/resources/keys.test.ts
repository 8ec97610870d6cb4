import { describe, expect, it } from 'vitest';
import { scopes } from '../../../../server/tenants/api-keys/key.ts';
import { createApiKey } from '../../../../server/tenants/api-keys/key-store.ts';
import { createTenant } from '../../../../server/tenants/create-tenant.ts';
import { eventually } from '../../../support/eventually.ts';
import { adminKey, startApp, useApp } from '../../../support/http/app.ts';
import { addTenant, useTenant } from '../../../support/postgres/database.ts';

const context = useTenant();
const app = useApp(context);
const tenantKey = () => app.keyFor(context.tenant.id);

describe('a key', () => {
  it('is accepted as a bearer token or as X-API-Key', async () => {
    const key = await tenantKey();
    expect((await app.request('GET', '/api/keys', { key })).status).toBe(200);
    expect((await app.request('GET', '/api/keys', { headers: { 'X-API-Key': key } })).status).toBe(200);
    expect((await app.request('GET', '/api/keys', { headers: { authorization: `bearer ${key}` } })).status).toBe(200);
  });

  it('that is missing, unknown, altered, revoked or expired gets the same answer', async () => {
    const good = await tenantKey();
    const flipped = good.slice(0, -1) + (good.endsWith('0') ? '1' : '0');
    const expired = await createApiKey(context.db, {
      tenantId: context.tenant.id,
      name: 'old',
      scopes,
      expiresAt: '2020-01-01T00:00:00Z',
    });
    const revoked = await createApiKey(context.db, { tenantId: context.tenant.id, name: 'gone', scopes });
    await context.db.query('update leasehold.api_keys set revoked_at = now() where id = $1', [revoked.id]);
    const unknown = `lh_${'0'.repeat(16)}_${'0'.repeat(64)}`;
    const answers = await Promise.all(
      [undefined, unknown, flipped, expired.text, revoked.text, 'x', 'x'.repeat(5000)].map((key) =>
        app.request('GET', '/api/keys', { key }),
      ),
    );
    const bodies = answers.map(({ status, body }) => ({ status, ...body, request_id: undefined }));
    for (const body of bodies) expect(body).toEqual(bodies[0]);
    expect(bodies[0]).toMatchObject({ status: 401, code: 'UNAUTHORIZED' });
    expect(answers[0]?.headers.get('www-authenticate')).toContain('Bearer');
  });

  it('is refused without the scope', async () => {
    const key = await app.keyFor(context.tenant.id, ['read', 'enqueue', 'control', 'worker']);
    const answer = await app.request('GET', '/api/keys', { key });
    expect(answer.status).toBe(403);
    expect(answer.body.code).toBe('FORBIDDEN');
  });

  it("of a tenant does not open the operator's routes, and vice versa", async () => {
    expect((await app.request('GET', '/api/admin/tenants', { key: await tenantKey() })).status).toBe(403);
    expect((await app.request('GET', '/api/keys', { key: adminKey })).status).toBe(403);
  });

  it('sees and changes only the keys of its own tenant', async () => {
    const other = await addTenant(context.db, 'other');
    const foreign = await createApiKey(context.db, { tenantId: other.tenant.id, name: 'foreign', scopes });
    const key = await tenantKey();
    const list = await app.request('GET', '/api/keys', { key });
    expect(list.body.keys.map((k: { id: string }) => k.id)).not.toContain(foreign.id);
    expect((await app.request('DELETE', `/api/keys/${foreign.id}`, { key })).status).toBe(404);
    expect((await app.request('POST', `/api/keys/${foreign.id}/rotate`, { key })).status).toBe(404);
    expect((await app.request('GET', '/api/keys', { key: foreign.text })).status).toBe(200);
  });

  it('works at once for a tenant that another daemon has just created', async () => {
    await context.db.query(
      `insert into leasehold.tenants (id, slug, schema_name, status)
       values (gen_random_uuid(), 'nearly', 'tenant_nearly', 'PROVISIONING')`,
    );
    await app.deps.registry.refresh();
    const made = await createTenant(context.db, { slug: 'nearly' });
    expect((await app.request('GET', '/api/keys', { key: made.key.text })).status).toBe(200);
  });

  it('is stored only as a hash', async () => {
    const key = await tenantKey();
    const rows = await context.db.query('select row_to_json(k)::text as row from leasehold.api_keys k');
    expect(JSON.stringify(rows)).not.toContain(key.split('_')[2]);
  });

  it('that is revoked or rotated stops working with the next request, despite the cache', async () => {
    const key = await tenantKey();
    for (const [method, path] of [
      ['DELETE', ''],
      ['POST', '/rotate'],
    ] as const) {
      const made = await app.request('POST', '/api/keys', { key, body: { name: 'brief', scopes: ['admin'] } });
      const brief = made.body.key.key;
      expect((await app.request('GET', '/api/keys', { key: brief })).status).toBe(200);
      const ended = await app.request(method, `/api/keys/${made.body.key.id}${path}`, { key });
      expect(ended.status).toBeLessThan(300);
      expect((await app.request('GET', '/api/keys', { key: brief })).status).toBe(401);
    }
  });

  it('revoked through one daemon, stops working on another within seconds', async () => {
    const second = await startApp(context);
    try {
      const key = await tenantKey();
      const made = await app.request('POST', '/api/keys', { key, body: { name: 'short', scopes: ['admin'] } });
      expect(made.status).toBe(201);
      const short = made.body.key.key;
      expect((await second.app.request('GET', '/api/keys', { key: short })).status).toBe(200);
      expect((await app.request('DELETE', `/api/keys/${made.body.key.id}`, { key })).status).toBe(200);
      await eventually(async () =>
        expect((await second.app.request('GET', '/api/keys', { key: short })).status).toBe(401),
      );
    } finally {
      await second.stop();
    }
  });
});

describe('rotating a key', () => {
  it('with an overlap keeps both valid', async () => {
    const key = await tenantKey();
    const made = (await app.request('POST', '/api/keys', { key, body: { name: 'r', scopes: ['admin'] } })).body.key;
    const rotated = await app.request('POST', `/api/keys/${made.id}/rotate`, { key, body: { overlap_seconds: 3600 } });
    expect(rotated.status).toBe(201);
    expect(rotated.body.key).toMatchObject({ name: 'r', scopes: ['admin'], expires_at: null });
    expect(rotated.body.previous.expires_at).not.toBeNull();
    expect((await app.request('GET', '/api/keys', { key: made.key })).status).toBe(200);
    expect((await app.request('GET', '/api/keys', { key: rotated.body.key.key })).status).toBe(200);
  });

  it('without one ends the old key, which cannot be rotated again', async () => {
    const key = await tenantKey();
    const made = (await app.request('POST', '/api/keys', { key, body: { name: 'r', scopes: ['admin'] } })).body.key;
    const rotated = await app.request('POST', `/api/keys/${made.id}/rotate`, { key });
    expect(rotated.status).toBe(201);
    expect(rotated.body.previous.revoked_at).not.toBeNull();
    expect((await app.request('GET', '/api/keys', { key: made.key })).status).toBe(401);
    expect((await app.request('POST', `/api/keys/${made.id}/rotate`, { key })).status).toBe(409);
  });
});

describe("the operator's routes for keys", () => {
  it('make, list and revoke keys of a tenant', async () => {
    const path = `/api/admin/tenants/${context.tenant.slug}/keys`;
    const made = await app.request('POST', path, { key: adminKey, body: { name: 'ops', scopes: ['read'] } });
    expect(made.status).toBe(201);
    const listed = await app.request('GET', path, { key: adminKey });
    expect(listed.body.keys[0]).toMatchObject({ id: made.body.key.id, name: 'ops', scopes: ['read'] });
    expect(
      (await app.request('DELETE', `${path}/${made.body.key.id}`, { key: adminKey })).body.key.revoked_at,
    ).not.toBeNull();
    expect((await app.request('GET', '/api/admin/tenants/nobody/keys', { key: adminKey })).status).toBe(404);
  });

  it('make operator keys, which work', async () => {
    const made = await app.request('POST', '/api/admin/keys', { key: adminKey, body: { name: 'second operator' } });
    expect(made.status).toBe(201);
    expect((await app.request('GET', '/api/admin/tenants', { key: made.body.key.key })).status).toBe(200);
  });

  it('name a scope that does not exist', async () => {
    const body = { name: 'x', scopes: ['root'] };
    const answer = await app.request('POST', `/api/admin/tenants/${context.tenant.slug}/keys`, { key: adminKey, body });
    expect(answer.body).toMatchObject({ code: 'INVALID_FIELD', field: 'scopes[0]' });
  });
});
