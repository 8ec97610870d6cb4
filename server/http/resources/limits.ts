// /api/limits: rate and concurrency limits of the tenant, and their current counts.
import { z } from 'zod';
import type { Database } from '../../database/database.ts';
import { type LimitUse, readLimitUse } from '../../jobs/limits/read-limits.ts';
import { burstOf, limitSetting } from '../../tenants/named-settings.ts';
import type { TenantRegistry } from '../../tenants/registry.ts';
import type { Tenant } from '../../tenants/tenant.ts';
import { deleteLimit, noLimit, putLimit } from '../../tenants/tenant-settings.ts';
import { getTenant } from '../../tenants/tenant-store.ts';
import { RouteGroup, reply } from '../route.ts';

interface LimitDependencies {
  db: Database;
  registry: Pick<TenantRegistry, 'refresh' | 'byId'>;
}

const time = z.iso.datetime({ offset: true });

const keySchema = z.strictObject({
  value: z.string().describe('The counted value; empty for a limit without a key.'),
  waiting: z.int(),
  running: z.int(),
  tokens: z.int().nullable().describe('Starts that are possible at once; null without a rate.'),
  next_at: time.nullable().describe('When the next token comes, if there is none.'),
});

const limitSchema = z
  .strictObject({
    name: z.string(),
    source: z.enum(['settings', 'code']).describe('`code`: declared with the handler of its type.'),
    type: z.string().nullable(),
    queue: z.string().nullable(),
    key: z.string().nullable(),
    rate: z.number().nullable(),
    per: z.enum(['second', 'minute', 'hour', 'day']).nullable(),
    burst: z.int().nullable(),
    concurrency: z.int().nullable(),
    waiting: z.int().describe('Jobs that could start but for a limit; not counted beyond 20,000.'),
    running: z.int(),
    keys: z.array(keySchema).describe('The 20 with the most waiting jobs.'),
  })
  .meta({ id: 'Limit' });

const params = z.strictObject({ name: z.string().max(100) });

export function limitRoutes({ db, registry }: LimitDependencies): RouteGroup {
  const group = new RouteGroup('Limits');
  const show = async (db: Database, tenant: Tenant, name: string) => {
    const limit = tenant.limits.find((known) => known.name === name);
    if (limit === undefined) throw noLimit(tenant, name);
    const [use] = await readLimitUse(db, tenant.schema, [limit]);
    return limitToApi(use as LimitUse);
  };
  group.route({
    method: 'get',
    path: '/api/limits',
    summary: 'List rate and concurrency limits, and what they count now',
    access: 'read',
    answers: { 200: z.strictObject({ limits: z.array(limitSchema) }) },
    handle: async ({ tenant, db }) => ({
      limits: (await readLimitUse(db, tenant.schema, tenant.limits)).map(limitToApi),
    }),
  });
  group.route({
    method: 'get',
    path: '/api/limits/{name}',
    summary: 'Read a limit',
    access: 'read',
    params,
    answers: { 200: limitSchema },
    problems: ['NOT_FOUND'],
    handle: ({ tenant, db, params: { name } }) => show(db, tenant, name),
  });
  group.route({
    method: 'put',
    path: '/api/limits/{name}',
    summary: 'Set a limit',
    description:
      'Replaces the limit of this name, also one that a job type declares. It applies to waiting jobs too, within moments.',
    access: 'admin',
    params,
    body: limitSetting,
    answers: { 200: limitSchema, 201: limitSchema },
    handle: async (context) => {
      const { tenant, body } = context;
      const { name } = context.params;
      const isNew = await putLimit(db, tenant, name, body);
      return reply(isNew ? 201 : 200, await show(context.db, await reread(tenant), name));
    },
  });
  group.route({
    method: 'delete',
    path: '/api/limits/{name}',
    summary: 'Remove a limit; its waiting jobs may start',
    access: 'admin',
    params,
    answers: { 204: null },
    problems: ['NOT_FOUND', 'CONFLICT'],
    handle: async ({ tenant, params: { name } }) => {
      await deleteLimit(db, tenant, name);
      await reread(tenant);
      return reply(204);
    },
  });
  /** Returns the tenant with its current limits, which this daemon applies from now on. */
  const reread = async (tenant: Tenant): Promise<Tenant> => {
    await registry.refresh();
    return registry.byId(tenant.id) ?? getTenant(db, tenant.slug);
  };
  return group;
}

function limitToApi(use: LimitUse): z.input<typeof limitSchema> {
  const { name, source, type, queue, key, rate, per, concurrency, waiting, running, keys } = use;
  return {
    name,
    source,
    type: type ?? null,
    queue: queue ?? null,
    key: key ?? null,
    rate: rate ?? null,
    per: rate === undefined ? null : (per ?? 'second'),
    burst: rate === undefined ? null : burstOf(use),
    concurrency: concurrency ?? null,
    waiting,
    running,
    keys: keys.map(({ nextAt, ...rest }) => ({ ...rest, next_at: nextAt })),
  };
}
