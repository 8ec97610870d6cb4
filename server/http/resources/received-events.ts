// POST /api/events/{name}: events from outside, for jobs that wait for them.
import { z } from 'zod';
import { eventName, type Receipt, receiveEvent, sentEvent } from '../../jobs/received/receive-event.ts';
import type { Tenant } from '../../tenants/tenant.ts';
import { present } from '../present.ts';
import { RouteGroup, reply } from '../route.ts';

export interface ReceivedEventDependencies {
  /** The event is stored: deliver it. */
  onReceived(tenant: Tenant): void;
}

const receiptSchema = z
  .strictObject({
    id: z.string().describe('The given id, else a generated one.'),
    name: z.string(),
    received_at: z.iso.datetime({ offset: true }),
  })
  .meta({ id: 'EventReceipt' });

export function receivedEventRoutes({ onReceived }: ReceivedEventDependencies): RouteGroup {
  const group = new RouteGroup('Events');
  group.route({
    method: 'post',
    path: '/api/events/{name}',
    summary: 'Send an event to the jobs that wait for it',
    description:
      'Every job that waits for an event of this name, with data that contains its `match`, gets it exactly once. So does a job ' +
      'that was enqueued before and begins to wait later. 201: it was received. 200: an event of this name and `id` was received before.',
    access: 'enqueue',
    params: z.strictObject({ name: eventName }),
    body: sentEvent,
    bodyOptional: true,
    answers: { 201: receiptSchema, 200: receiptSchema },
    problems: ['IDEMPOTENCY_CONFLICT', 'CONFLICT', 'TENANT_SUSPENDED', 'PAYLOAD_TOO_LARGE'],
    handle: async ({ tenant, db, params, body, actor }) => {
      const { replayed, ...receipt } = await receiveEvent(db, tenant.schema, { ...params, ...body }, actor);
      onReceived(tenant);
      return reply(replayed ? 200 : 201, receiptToApi(receipt));
    },
  });
  return group;
}

function receiptToApi(receipt: Receipt): z.input<typeof receiptSchema> {
  return present(receiptSchema, receipt);
}
