// Keys as the operator sees them: those of any tenant, and the operator's own.
import { z } from 'zod';
import { getTenant } from '../../tenants/tenant-store.ts';
import { RouteGroup } from '../route.ts';
import { createKeyBody } from './key-schemas.ts';
import { addKeyRoutes, type KeyRouteDependencies } from './keys.ts';

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
