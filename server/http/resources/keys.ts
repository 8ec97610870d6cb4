// Keys over HTTP: a tenant's own under /api/keys, any tenant's under /api/admin/tenants/{slug}/keys,
// the operator's under /api/admin/keys. One definition of the four routes serves all three.
import { z } from 'zod';
import type { Database } from '../../database/database.ts';
import { createApiKey, listApiKeys, revokeApiKey, rotateApiKey } from '../../tenants/api-keys/key-store.ts';
import type { KeyVerifier } from '../../tenants/api-keys/verifier.ts';
import { audit } from '../audit.ts';
import { encodeCursor } from '../cursor.ts';
import { pageQuery } from '../query.ts';
import { type Access, type RouteContext, RouteGroup, reply } from '../route.ts';
import {
  createKeyBody,
  keyIdParam,
  keySchema,
  keyToApi,
  newKeySchema,
  newKeyToApi,
  rotateKeyBody,
} from './key-schemas.ts';

/** Whose keys a set of routes is about. */
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
  /** Remembers keys for a moment. */
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

export function addKeyRoutes<A extends Access, P extends z.ZodRawShape>(
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
    answers: { 200: z.strictObject({ keys: z.array(keySchema), next_cursor: z.string().nullable() }) },
    problems: ['INVALID_CURSOR'],
    handle: async (context) => {
      const { limit, cursor } = context.query;
      const tenantId = await ownerOf(context);
      const list = `keys:${tenantId ?? 'operator'}`;
      const [createdAt, id] = cursor?.position(list, ['time', 'text']) ?? [];
      const before = createdAt === undefined || id === undefined ? undefined : { createdAt, id };
      const found = await listApiKeys(db, tenantId, { limit: limit + 1, before });
      const page = found.slice(0, limit);
      const last = found.length > page.length ? page.at(-1) : undefined;
      return { keys: page.map(keyToApi), next_cursor: last ? encodeCursor(list, [last.createdAt, last.id]) : null };
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
