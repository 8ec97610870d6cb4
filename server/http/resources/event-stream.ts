// The live stream over HTTP. The route knows the request; server/events/stream/streams.ts knows streams.
import { z } from 'zod';
import type { Database } from '../../database/database.ts';
import type { EventStreams } from '../../events/stream/streams.ts';
import type { KeyVerifier } from '../../tenants/api-keys/verifier.ts';
import type { TenantRegistry } from '../../tenants/registry.ts';
import { keyText } from '../authenticate.ts';
import { booleanQuery } from '../query.ts';
import { handled, RouteGroup, reply } from '../route.ts';
import { jobIdParam, targetIdParam } from './event-schemas.ts';
import { readSelection } from './event-snapshot.ts';

export interface EventStreamDependencies {
  db: Database;
  streams: EventStreams;
  keys: Pick<KeyVerifier, 'verify'>;
  registry: Pick<TenantRegistry, 'byId'>;
}

export function eventStreamRoutes(deps: EventStreamDependencies): RouteGroup {
  const group = new RouteGroup('Events');
  group.route({
    method: 'get',
    path: '/api/events/stream',
    summary: 'The live stream of events',
    description:
      'Server-sent events, named `job:started`, `job:completed`…; the data is an Event. A reader that comes back ' +
      'with `Last-Event-ID` misses nothing and gets nothing twice; `reset` tells that this was not possible.',
    access: 'read',
    query: z.strictObject({
      job_id: jobIdParam.optional(),
      target_id: targetIdParam.optional(),
      snapshot: booleanQuery().optional().describe('First send the present jobs of the selection.'),
      last_event_id: z.string().max(8000).optional().describe('For clients that cannot set the header.'),
    }),
    contentType: 'text/event-stream',
    // Readers of one tenant share their reads, and stay for hours.
    turns: 'own',
    answers: { 200: z.string() },
    problems: ['TOO_MANY_REQUESTS', 'DRAINING'],
    async handle({ query, tenant, key, request, response, withTurn }) {
      if (request.method === 'HEAD') return reply(200, undefined, { 'Content-Type': 'text/event-stream' });
      const filter = { jobId: query.job_id, targetId: query.target_id };
      const text = keyText(request) ?? '';
      await deps.streams.open(response, {
        tenant,
        keyId: key.id,
        filter,
        // A browser that reconnects sends the header with the address of its first request.
        lastEventId: request.get('Last-Event-ID') || query.last_event_id || undefined,
        readSnapshot: query.snapshot ? () => withTurn(() => readSelection(deps.db, tenant.schema, filter)) : undefined,
        async stillAllowed() {
          const known = deps.registry.byId(tenant.id);
          if (!known || known.status === 'DELETING') return false;
          const present = await deps.keys.verify(text);
          return present?.tenantId === tenant.id && present.scopes.includes('read');
        },
      });
      return handled;
    },
  });
  return group;
}
