// Keys as the operator sees them: those of any tenant, and the operator's own.
import { z } from 'zod';
import type { Database } from '../../database/database.ts';
import { getTenant } from '../../tenants/read.ts';
import { RouteGroup } from '../route.ts';
import { createKeyBody } from './key-schemas.ts';
import { addKeyRoutes } from './keys.ts';

export function adminKeyRoutes({ db }: { db: Database }): RouteGroup {
  const group = new RouteGroup('Administration');
  addKeyRoutes(group, db, {
    path: '/api/admin/tenants/{slug}/keys',
    access: 'operator',
    params: { slug: z.string().max(100) },
    body: createKeyBody,
    ownerOf: async ({ params }) => (await getTenant(db, params.slug)).id,
  });
  addKeyRoutes(group, db, {
    path: '/api/admin/keys',
    access: 'operator',
    params: {},
    body: createKeyBody.omit({ scopes: true }),
    ownerOf: async () => null,
  });
  return group;
}
