// API keys over HTTP: a tenant's own under /api/keys, any tenant's under /api/admin/tenants/{slug}/keys, the operator's
// under /api/admin/keys. One definition of the four routes serves all three.
import { z } from 'zod';
import type { Database } from '../../database/database.ts';
import { timeField } from '../../kernel/fields.ts';
import { type ApiKey, type NewApiKey, scopes } from '../../tenants/api-keys/key.ts';
import { createApiKey, listApiKeys, revokeApiKey, rotateApiKey } from '../../tenants/api-keys/key-store.ts';
import type { KeyVerifier } from '../../tenants/api-keys/verifier.ts';
import { getTenant } from '../../tenants/tenant-store.ts';
import { paged, pageOf, pageQuery, pageSchema } from '../request/paging.ts';
import { audit } from '../request/request-log.ts';
import { type Access, type RouteContext, RouteGroup, reply } from '../route.ts';
import { toApi } from '../to-api.ts';

const scopeSchema = z.enum(scopes);
const isoTime = z.iso.datetime({ offset: true });

const keySchema = z
  .strictObject({
    id: z.string(),
    name: z.string(),
    scopes: z.array(scopeSchema),
    created_at: isoTime,
    expires_at: isoTime.nullable(),
    revoked_at: isoTime.nullable(),
    last_used_at: isoTime.nullable().describe('Accurate to about a minute.'),
  })
  .meta({ id: 'ApiKey' });

export const newKeySchema = keySchema
  .extend({ key: z.string().describe('The key itself. It is shown only once and cannot be read again.') })
  .meta({ id: 'NewApiKey' });

const createKeyBody = z.strictObject({
  name: z.string().trim().min(1).max(200),
  scopes: z.array(scopeSchema).min(1).max(scopes.length),
  expires_at: timeField().optional().describe('When the key expires.'),
});

const rotateKeyBody = z.strictObject({
  overlap_seconds: z
    .int()
    .min(0)
    .max(2_592_000)
    .default(0)
    .describe('How long the old key remains valid; 0 revokes it at once.'),
});

const keyIdParam = z.string().max(100);

/** The owner of the keys that a set of routes manages. */
interface KeyOwner<A extends Access, P extends z.ZodRawShape> {
  path: `/${string}`;
  access: A;
  params: P;
  /** Scopes can be chosen for tenants' keys only; an operator's key is `admin`. */
  body: z.ZodType<{ name: string; scopes?: z.output<typeof createKeyBody>['scopes']; expires_at?: string | undefined }>;
  /** The tenant's id, or null for the operator. */
  ownerOf(context: RouteContext<A, z.output<z.ZodObject<P>>>): Promise<string | null>;
}

export interface KeyRouteDependencies {
  db: Database;
  /** Caches keys for a short time. */
  keys: Pick<KeyVerifier, 'forget'>;
}

export function keyRoutes(deps: KeyRouteDependencies): RouteGroup {
  const group = new RouteGroup('Keys');
  addKeyRoutes(group, deps, {
    path: '/api/keys',
    access: 'admin',
    params: {},
    body: createKeyBody,
    ownerOf: async ({ tenant }) => tenant.id,
  });
  return group;
}

export function adminKeyRoutes(deps: KeyRouteDependencies): RouteGroup {
  const { db } = deps;
  const group = new RouteGroup('Administration');
  addKeyRoutes(group, deps, {
    path: '/api/admin/tenants/{slug}/keys',
    access: 'operator',
    params: { slug: z.string().max(100) },
    body: createKeyBody,
    ownerOf: async ({ params }) => (await getTenant(db, params.slug)).id,
  });
  addKeyRoutes(group, deps, {
    path: '/api/admin/keys',
    access: 'operator',
    params: {},
    body: createKeyBody.omit({ scopes: true }),
    ownerOf: async () => null,
  });
  return group;
}

function addKeyRoutes<A extends Access, P extends z.ZodRawShape>(
  group: RouteGroup,
  { db, keys }: KeyRouteDependencies,
  owner: KeyOwner<A, P>,
): void {
  const ownerParams = z.strictObject(owner.params);
  const keyParams = z.strictObject({ ...owner.params, id: keyIdParam });
  const ownerOf = (context: unknown) => owner.ownerOf(context as RouteContext<A, z.output<z.ZodObject<P>>>);
  const idOf = (params: unknown) => (params as { id: string }).id;
  group.route({
    method: 'get',
    path: owner.path,
    summary: 'List keys, newest first',
    access: owner.access as Access,
    params: ownerParams,
    query: z.strictObject(pageQuery({ defaultLimit: 200, maxLimit: 1000 })),
    answers: { 200: pageSchema('keys', keySchema) },
    problems: ['INVALID_CURSOR'],
    handle: async (context) => {
      const tenantId = await ownerOf(context);
      const list = { name: `keys:${tenantId ?? 'operator'}`, position: ['time', 'text'] } as const;
      const page = await paged(list, context.query, async ([createdAt, id], limit) => {
        const before = createdAt === undefined || id === undefined ? undefined : { createdAt, id };
        const found = await listApiKeys(db, tenantId, { limit: limit + 1, before });
        return pageOf(found, limit, (last) => [last.createdAt, last.id]);
      });
      return { keys: page.rows.map(keyToApi), next_cursor: page.next_cursor };
    },
  });
  group.route({
    method: 'post',
    path: owner.path,
    summary: 'Create a key',
    access: owner.access as Access,
    params: ownerParams,
    body: owner.body,
    answers: { 201: z.strictObject({ key: newKeySchema }) },
    handle: async (context) => {
      const { name, scopes = ['admin'], expires_at } = context.body;
      const key = await createApiKey(db, { tenantId: await ownerOf(context), name, scopes, expiresAt: expires_at });
      audit(context, 'key created', { newKey: key.id, tenantId: key.tenantId, scopes: key.scopes });
      return reply(201, { key: newKeyToApi(key) });
    },
  });
  group.route({
    method: 'delete',
    path: `${owner.path}/{id}`,
    summary: 'Revoke a key',
    access: owner.access as Access,
    params: keyParams,
    answers: { 200: z.strictObject({ key: keySchema }) },
    problems: ['NOT_FOUND'],
    handle: async (context) => {
      const key = await revokeApiKey(db, await ownerOf(context), idOf(context.params));
      keys.forget(key.id);
      audit(context, 'key revoked', { revokedKey: key.id, tenantId: key.tenantId });
      return { key: keyToApi(key) };
    },
  });
  group.route({
    method: 'post',
    path: `${owner.path}/{id}/rotate`,
    summary: 'Replace a key by a new one',
    access: owner.access as Access,
    params: keyParams,
    body: rotateKeyBody,
    bodyOptional: true,
    answers: { 201: z.strictObject({ key: newKeySchema, previous: keySchema }) },
    problems: ['NOT_FOUND', 'CONFLICT'],
    handle: async (context) => {
      const id = idOf(context.params);
      const { key, previous } = await rotateApiKey(db, await ownerOf(context), id, context.body.overlap_seconds);
      keys.forget(previous.id);
      audit(context, 'key rotated', { rotatedKey: previous.id, newKey: key.id, tenantId: key.tenantId });
      return reply(201, { key: newKeyToApi(key), previous: keyToApi(previous) });
    },
  });
}

function keyToApi(key: ApiKey): z.input<typeof keySchema> {
  return toApi(keySchema, key, { scopes: [...key.scopes] });
}

export function newKeyToApi(key: NewApiKey): z.input<typeof newKeySchema> {
  return { ...keyToApi(key), key: key.text };
}
