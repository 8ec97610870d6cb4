// /api/session: signs in to the dashboard with an API key, returns who is signed in, signs out.
import type { Request } from 'express';
import { z } from 'zod';
import { problem } from '../../kernel/errors.ts';
import { type ApiKey, scopes } from '../../tenants/api-keys/key.ts';
import type { Sessions } from '../../tenants/api-keys/sessions.ts';
import type { TenantRegistry } from '../../tenants/registry.ts';
import { clearSessionCookie, requireSameOrigin, sessionToken, setSessionCookie } from '../request/authenticate.ts';
import { failureLimit } from '../request/failure-limit.ts';
import { type RouteContext, RouteGroup, reply } from '../route.ts';

interface SessionDependencies {
  sessions: Sessions;
  registry: Pick<TenantRegistry, 'byId'>;
  version?: string;
  /** Returns who is signed in, according to the embedding program, which also signs people in and out. */
  hostKey?: ((request: Request) => Promise<ApiKey | undefined>) | undefined;
}

const sessionSchema = z
  .strictObject({
    key: z.strictObject({ id: z.string(), name: z.string(), scopes: z.array(z.enum(scopes)) }),
    operator: z.boolean().describe("True for an operator's key, which may read every tenant."),
    tenant: z.string().nullable().describe("The slug of the key's tenant; null for operators."),
    tenant_status: z.string().nullable(),
  })
  .meta({ id: 'Session' });
const answer = z.strictObject({ session: sessionSchema.nullable(), version: z.string() });

// More than a person mistypes, and too few for guessing.
const failuresPerMinute = 20;
const maxBodyBytes = 4096;

export function sessionRoutes(deps: SessionDependencies): RouteGroup {
  const group = new RouteGroup('Dashboard');
  const version = deps.version ?? '0.0.0';
  const limit = failureLimit({
    perMinute: failuresPerMinute,
    refuse: (_request, _response, next) =>
      next(problem('TOO_MANY_REQUESTS', 'Too many failed sign-ins from this address; wait a minute.')),
  });
  const countFailure = ({ request, response }: RouteContext) =>
    new Promise<void>((resolve, reject) => {
      void limit(request, response, (error?: unknown) => (error === undefined ? resolve() : reject(error)));
    });
  group.route({
    method: 'get',
    path: '/api/session',
    summary: 'Who is signed in to the dashboard',
    access: 'public',
    answers: { 200: answer },
    handle: async ({ request }) => {
      const key = await signedIn(deps, request);
      return { session: key === undefined ? null : toApi(deps, key), version };
    },
  });
  group.route({
    method: 'post',
    path: '/api/session',
    summary: 'Sign in to the dashboard with an API key or a one-time link',
    description: 'Sets a cookie that scripts cannot read. The session ends after 12 hours, or when the key is revoked.',
    access: 'public',
    // Anybody may send it, so it must not use up the memory for large requests.
    bodyLimitBytes: maxBodyBytes,
    body: z.strictObject({
      key: z.string().trim().max(512).optional(),
      link: z.string().max(200).optional().describe('The part of a one-time link after `#`.'),
    }),
    answers: { 201: answer },
    problems: ['UNAUTHORIZED', 'FORBIDDEN', 'TOO_MANY_REQUESTS'],
    handle: async (context) => {
      const { body, request, response } = context;
      if (deps.hostKey !== undefined)
        throw problem('FORBIDDEN', 'This API is embedded in another program; sign in there.');
      requireSameOrigin(request);
      const token =
        body.link === undefined
          ? (await deps.sessions.open(body.key ?? ''))?.token
          : await deps.sessions.openByLink(body.link);
      const key = token === undefined ? undefined : await deps.sessions.verify(token);
      if (token === undefined || key === undefined) {
        await countFailure(context as RouteContext);
        throw problem(
          'UNAUTHORIZED',
          body.link === undefined
            ? 'This key is not valid: it is mistyped, revoked or expired.'
            : 'This sign-in link was used already, or has expired. Sign in with a key instead.',
        );
      }
      setSessionCookie(request, response, token);
      return reply(201, { session: toApi(deps, key), version });
    },
  });
  group.route({
    method: 'delete',
    path: '/api/session',
    summary: 'Sign out of the dashboard',
    access: 'public',
    answers: { 204: null },
    problems: ['FORBIDDEN'],
    handle: async ({ request, response }) => {
      requireSameOrigin(request);
      const token = sessionToken(request);
      if (token !== undefined) await deps.sessions.close(token);
      clearSessionCookie(request, response);
      return reply(204);
    },
  });
  return group;
}

async function signedIn({ hostKey, sessions }: SessionDependencies, request: Request): Promise<ApiKey | undefined> {
  if (hostKey !== undefined) return hostKey(request);
  const token = sessionToken(request);
  return token === undefined ? undefined : sessions.verify(token);
}

function toApi({ registry }: SessionDependencies, key: ApiKey): z.input<typeof sessionSchema> {
  const tenant = key.tenantId === null ? undefined : registry.byId(key.tenantId);
  return {
    key: { id: key.id, name: key.name, scopes: [...key.scopes] },
    operator: key.tenantId === null,
    tenant: tenant?.slug ?? null,
    tenant_status: tenant?.status ?? null,
  };
}
