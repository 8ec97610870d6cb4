// Authenticates a caller by API key and checks its scope. The tenant comes from the key's row, never from the request.
import type { Request, RequestHandler, Response } from 'express';
import { rateLimit } from 'express-rate-limit';
import { problem } from '../kernel/errors.ts';
import type { ApiKey, Scope } from '../tenants/api-keys/key.ts';
import type { TenantRegistry } from '../tenants/registry.ts';
import type { Tenant } from '../tenants/tenant.ts';
import type { RouteDefinition } from './route.ts';

export type Authenticate = RequestHandler;

export interface Caller {
  key: ApiKey;
  /** Undefined for operators. */
  tenant: Tenant | undefined;
}

interface AuthenticateDependencies {
  keys: { verify(text: string): Promise<ApiKey | undefined> };
  registry: Pick<TenantRegistry, 'byId' | 'refresh'>;
}

// Enough for many misconfigured clients behind one address, too few for guessing.
const failuresPerMinute = 120;
// A longer text is not a key, and is not hashed.
const maxKeyLength = 512;

export function createAuthenticate(deps: AuthenticateDependencies): Authenticate {
  // Only failures are counted: a client with a valid key is never limited here.
  const countFailure = rateLimit({
    windowMs: 60_000,
    limit: failuresPerMinute,
    standardHeaders: 'draft-8',
    legacyHeaders: false,
    validate: false,
    handler: (_request, _response, next) =>
      next(problem('TOO_MANY_REQUESTS', 'Too many requests without a valid API key; wait a minute.')),
  });
  return async (request, response, next) => {
    try {
      const caller = await identify(deps, request);
      if (!caller) {
        response.set('WWW-Authenticate', 'Bearer realm="leasehold"');
        return void countFailure(request, response, (error?: unknown) => next(error ?? unauthorized()));
      }
      response.locals.caller = caller;
      next();
    } catch (error) {
      next(error);
    }
  };
}

export function callerOf(response: Response): Caller | undefined {
  return response.locals.caller as Caller | undefined;
}

/** Refuses a caller without the route's scope, and writes of a suspended tenant. */
export function authorize(definition: Pick<RouteDefinition, 'access' | 'method' | 'allowSuspended'>): RequestHandler {
  return (_request, response, next) => {
    const caller = callerOf(response);
    if (!caller) throw unauthorized();
    if (definition.access === 'operator') requireOperator(caller);
    else requireScope(caller, definition.access as Scope | readonly Scope[]);
    if (caller.tenant) requireService(caller.tenant, definition);
    next();
  };
}

async function identify(deps: AuthenticateDependencies, request: Request): Promise<Caller | undefined> {
  const text = keyText(request);
  if (text === undefined || text.length > maxKeyLength) return undefined;
  const key = await deps.keys.verify(text);
  if (!key) return undefined;
  if (key.tenantId === null) return { key, tenant: undefined };
  const known = deps.registry.byId(key.tenantId);
  // A valid key of an unknown or unfinished tenant: another daemon may just have created it.
  if (known && known.status !== 'PROVISIONING') return { key, tenant: known };
  await deps.registry.refresh();
  const tenant = deps.registry.byId(key.tenantId);
  return tenant && { key, tenant };
}

export function keyText(request: Request): string | undefined {
  const bearer = /^Bearer +(\S+) *$/i.exec(request.headers.authorization ?? '')?.[1];
  return bearer ?? request.get('X-API-Key');
}

function requireOperator(caller: Caller): void {
  if (caller.tenant) throw problem('FORBIDDEN', "This needs an operator's key; the key given is a tenant's.");
}

function requireScope(caller: Caller, access: Scope | readonly Scope[]): void {
  if (!caller.tenant) throw problem('FORBIDDEN', "An operator's key works on /api/admin only; use a tenant's key.");
  const wanted: readonly Scope[] = typeof access === 'string' ? [access] : access;
  if (wanted.some((scope) => caller.key.scopes.includes(scope))) return;
  throw problem('FORBIDDEN', `The key lacks the scope ${wanted.join(' or ')}.`, { scopes: caller.key.scopes });
}

function requireService(tenant: Tenant, definition: Pick<RouteDefinition, 'method' | 'allowSuspended'>): void {
  if (tenant.status === 'ACTIVE') return;
  const readsOnly = definition.method === 'get';
  if (tenant.status === 'SUSPENDED' && (readsOnly || definition.allowSuspended)) return;
  throw problem('TENANT_SUSPENDED', `The tenant is ${tenant.status}.`, { status: tenant.status });
}

// One text for missing, unknown, revoked and expired keys: the answer reveals nothing about a key.
function unauthorized() {
  return problem('UNAUTHORIZED', 'Send a valid API key as `Authorization: Bearer <key>` or as `X-API-Key`.');
}
