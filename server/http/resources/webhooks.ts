// /api/webhooks: deliveries and their outcome, resending, disabled URLs, signing secrets.
import { z } from 'zod';
import type { Database } from '../../database/database.ts';
import { problem } from '../../kernel/errors.ts';
import type { TenantRegistry } from '../../tenants/registry.ts';
import { ensureWebhookSecrets, rotateWebhookSecrets } from '../../tenants/webhook-secrets.ts';
import {
  type Delivery,
  deliveryStates,
  enableAddress,
  findDelivery,
  listDeliveries,
  listJobDeliveries,
  resendDelivery,
} from '../../webhooks/delivery.ts';
import { paged, pageQuery, pageSchema } from '../request/paging.ts';
import { audit } from '../request/request-log.ts';
import { RouteGroup } from '../route.ts';
import { toApi } from '../to-api.ts';
import { targetJobParams } from './jobs/job-schema.ts';
import { mustReadJob } from './jobs/jobs.ts';

interface WebhookDependencies {
  db: Database;
  registry: Pick<TenantRegistry, 'refresh'>;
  /** A delivery became due. */
  wake(slug: string): void;
}

const idParams = z.strictObject({ id: z.uuid() });
const deliverySchema = z
  .strictObject({
    id: z.string().describe('Sent as the header webhook-id with every attempt.'),
    job_id: z.string(),
    event_id: z.string(),
    event_type: z.string(),
    url: z.string(),
    state: z.enum(deliveryStates),
    attempts: z.int(),
    next_at: z.string().nullable().describe('When the next attempt is due; null if there is none.'),
    last_status: z.int().nullable(),
    last_error: z.string().nullable(),
    tries: z
      .array(z.strictObject({ at: z.string(), status: z.int().nullable(), error: z.string().nullable() }))
      .describe('The last 20 attempts, oldest first.'),
    created_at: z.string(),
    finished_at: z.string().nullable(),
  })
  .meta({ id: 'WebhookDelivery' });
const deliveryWithBody = deliverySchema
  .extend({ body: z.unknown().describe('What is sent, as JSON.') })
  .meta({ id: 'WebhookDeliveryWithBody' });
const oneDelivery = z.strictObject({ delivery: deliverySchema });
const secretsSchema = z.strictObject({
  secrets: z.array(z.string()).describe('Newest first; deliveries are signed with all of them.'),
});
// More than the events of one job that a tenant subscribes to in practice.
const maxPerJob = 1000;

export function webhookRoutes(deps: WebhookDependencies): RouteGroup {
  const group = new RouteGroup('Webhooks');
  addReads(group);
  addResend(group, deps);
  addSecrets(group, deps);
  return group;
}

function addReads(group: RouteGroup): void {
  group.route({
    method: 'get',
    path: '/api/webhooks/deliveries',
    summary: 'List deliveries, newest first',
    description: 'With a filter a page may be short, even empty, and still have a next one.',
    access: 'read',
    query: z.strictObject({ ...pageQuery(), state: z.enum(deliveryStates).optional() }),
    answers: { 200: pageSchema('deliveries', deliverySchema) },
    problems: ['INVALID_CURSOR'],
    handle: async ({ tenant, db, query }) => {
      const list = { name: `deliveries:${tenant.id}`, position: ['uuid'] } as const;
      const { rows, next_cursor } = await paged(list, query, async ([before], limit) => {
        const { deliveries, next } = await listDeliveries(db, tenant.schema, { before, limit, state: query.state });
        return { rows: deliveries, next: next === undefined ? undefined : [next] };
      });
      return { deliveries: rows.map(deliveryToApi), next_cursor };
    },
  });
  group.route({
    method: 'get',
    path: '/api/webhooks/deliveries/{id}',
    summary: 'Read one delivery with its body',
    access: 'read',
    params: idParams,
    answers: { 200: z.strictObject({ delivery: deliveryWithBody }) },
    problems: ['NOT_FOUND'],
    handle: async ({ tenant, db, params }) => {
      const delivery = await findDelivery(db, tenant.schema, params.id);
      if (delivery === undefined) throw noDelivery();
      return { delivery: { ...deliveryToApi(delivery), body: delivery.body } };
    },
  });
  group.route({
    method: 'get',
    path: '/api/jobs/{id}/deliveries',
    summary: 'The deliveries of one job, in the order of its events',
    access: 'read',
    params: idParams,
    answers: { 200: z.strictObject({ deliveries: z.array(deliverySchema) }) },
    handle: async ({ tenant, db, params }) => ({
      deliveries: (await listJobDeliveries(db, tenant.schema, params.id, maxPerJob)).map(deliveryToApi),
    }),
  });
  group.route({
    method: 'get',
    path: '/api/targets/{target_id}/jobs/{job_id}/deliveries',
    summary: "The deliveries of a target's job, in the order of its events",
    access: 'read',
    params: targetJobParams,
    answers: { 200: z.strictObject({ deliveries: z.array(deliverySchema) }) },
    problems: ['NOT_FOUND'],
    handle: async ({ tenant, db, params }) => {
      const job = await mustReadJob(db, tenant, params.job_id, params.target_id);
      return { deliveries: (await listJobDeliveries(db, tenant.schema, job.id, maxPerJob)).map(deliveryToApi) };
    },
  });
}

function addResend(group: RouteGroup, { wake }: WebhookDependencies): void {
  group.route({
    method: 'post',
    path: '/api/webhooks/deliveries/{id}/resend',
    summary: 'Send a delivery again, with a fresh set of attempts',
    access: 'control',
    params: idParams,
    answers: { 202: oneDelivery },
    problems: ['NOT_FOUND'],
    handle: async (context) => {
      const { tenant, db, params } = context;
      const delivery = await resendDelivery(db, tenant.schema, params.id);
      if (delivery === undefined) throw noDelivery();
      audit(context, 'webhook resent', { tenant: tenant.slug, deliveryId: delivery.id });
      wake(tenant.slug);
      return { delivery: deliveryToApi(delivery) };
    },
  });
  group.route({
    method: 'post',
    path: '/api/webhooks/enable',
    summary: 'Enable a URL that answered 410',
    description: 'Deliveries that were disabled become failed; resend those that still matter.',
    access: 'control',
    body: z.strictObject({ url: z.string().max(2048) }),
    answers: { 200: z.strictObject({ held_back: z.int() }) },
    handle: async (context) => {
      const heldBack = await enableAddress(context.db, context.tenant.schema, context.body.url);
      audit(context, 'webhook address enabled', { tenant: context.tenant.slug });
      return { held_back: heldBack };
    },
  });
}

function addSecrets(group: RouteGroup, { db, registry }: WebhookDependencies): void {
  group.route({
    method: 'get',
    path: '/api/webhooks/secret',
    summary: 'Show the secrets that sign webhooks',
    access: 'admin',
    answers: { 200: secretsSchema },
    handle: async ({ tenant, db }) => ({ secrets: await ensureWebhookSecrets(db, tenant.id) }),
  });
  group.route({
    method: 'post',
    path: '/api/webhooks/secret/rotate',
    summary: 'Create a new secret; the previous one signs too until the next rotation',
    access: 'admin',
    body: z.strictObject({
      keep_previous: z
        .boolean()
        .default(true)
        .describe('false revokes the previous secret at once, e.g. after a leak.'),
    }),
    bodyOptional: true,
    answers: { 200: secretsSchema },
    handle: async (context) => {
      const { tenant, body } = context;
      const secrets = await rotateWebhookSecrets(db, tenant.id, { keepPrevious: body.keep_previous });
      audit(context, 'webhook secret rotated', { tenant: tenant.slug, kept: secrets.length - 1 });
      await registry.refresh().catch(() => {});
      return { secrets };
    },
  });
}

function deliveryToApi(delivery: Delivery): z.input<typeof deliverySchema> {
  return toApi(deliverySchema, delivery, {
    event_id: delivery.eventSeq,
    next_at: delivery.state === 'pending' ? delivery.nextAt : null,
  });
}

function noDelivery() {
  return problem('NOT_FOUND', 'There is no such delivery.');
}
