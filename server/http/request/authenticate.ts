// Authenticates a caller by API key or by the cookie of a dashboard session, and checks its scope. The tenant comes
// from the key's row, never from the request.
import type { Request, RequestHandler, Response } from 'express';
import { problem } from '../../kernel/errors.ts';
import type { ApiKey, Scope } from '../../tenants/api-keys/key.ts';
import { type Sessions, sessionSeconds } from '../../tenants/api-keys/sessions.ts';
import type { TenantRegistry } from '../../tenants/registry.ts';
import type { Tenant } from '../../tenants/tenant.ts';
import type { RouteDefinition } from '../route.ts';
import { failureLimit } from './failure-limit.ts';

export type Authenticate = RequestHandler;

export interface Caller {
  key: ApiKey;
  /** Undefined for operators, unless their session has selected a tenant. */
  tenant: Tenant | undefined;
  /** Verifies the key again. Streams, which stay open for hours, call it periodically. */
  recheck(): Promise<ApiKey | undefined>;
  /** The actor in events and the audit log: `key:<id>`, unless the host that embeds the API names another. */
  actor?: string;
  /** The caller may only read, whatever its scopes. */
  readOnly?: boolean;
}

interface AuthenticateDependencies {
  keys: { verify(text: string): Promise<ApiKey | undefined> };
  registry: Pick<TenantRegistry, 'byId' | 'bySlug' | 'refresh'>;
  sessions: Pick<Sessions, 'verify'>;
}

// Enough for many misconfigured clients behind one address, and too few for guessing.
const failuresPerMinute = 120;
// A longer text is not a key, and is not hashed.
const maxKeyLength = 512;

export function createAuthenticate(deps: AuthenticateDependencies): Authenticate {
  // Only failures are counted: a client with a valid key is never limited here.
  const countFailure = failureLimit({
    perMinute: failuresPerMinute,
    refuse: (_request, _response, next) =>
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
    if (caller.readOnly && definition.method !== 'get') throw problem('FORBIDDEN', 'This API is mounted read-only.');
    if (definition.access === 'operator') requireOperator(caller);
    else requireScope(caller, definition.access as Scope | readonly Scope[]);
    if (caller.tenant) requireService(caller.tenant, definition);
    next();
  };
}

async function identify(deps: AuthenticateDependencies, request: Request): Promise<Caller | undefined> {
  const text = keyText(request);
  const token = text === undefined ? sessionToken(request) : undefined;
  if (token !== undefined) requireSameOrigin(request);
  const recheck = async () => {
    if (token !== undefined) return deps.sessions.verify(token);
    return text === undefined || text.length > maxKeyLength ? undefined : deps.keys.verify(text);
  };
  const key = await recheck();
  if (!key) return undefined;
  if (key.tenantId === null) return operatorCaller(deps, key, token === undefined ? undefined : request, recheck);
  const known = deps.registry.byId(key.tenantId);
  // A valid key of an unknown or unfinished tenant: another daemon may just have created it.
  if (known && known.status !== 'PROVISIONING') return { key, tenant: known, recheck };
  await deps.registry.refresh();
  const tenant = deps.registry.byId(key.tenantId);
  return tenant && { key, tenant, recheck };
}

// The scopes of an operator who acts for a tenant in the dashboard: everything except working on its jobs.
export const operatorScopes: readonly Scope[] = ['read', 'enqueue', 'control', 'admin'];

/** An operator who is signed in to the dashboard selects a tenant by header; a key alone cannot. */
function operatorCaller(
  deps: AuthenticateDependencies,
  key: ApiKey,
  signedIn: Request | undefined,
  recheck: Caller['recheck'],
): Caller {
  const slug = signedIn?.get(tenantHeader);
  if (slug === undefined) return { key, tenant: undefined, recheck };
  const tenant = deps.registry.bySlug(slug);
  if (tenant === undefined) throw problem('NOT_FOUND', `There is no tenant ${slug}.`);
  return { key: { ...key, scopes: operatorScopes }, tenant, recheck };
}

function keyText(request: Request): string | undefined {
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

// The same text for missing, unknown, revoked and expired keys, so that the answer reveals nothing about a key.
function unauthorized() {
  return problem(
    'UNAUTHORIZED',
    'The API key is missing, unknown, revoked or expired. Send a valid one as `Authorization: Bearer <key>` or `X-API-Key`.',
  );
}

const cookieName = 'leasehold_session';
/**
 * Returns the tenant that an operator has selected: an operator with a dashboard session, or one named by the embedding
 * program.
 */
export const tenantHeader = 'X-Leasehold-Tenant';

export function sessionToken(request: Request): string | undefined {
  for (const part of (request.headers.cookie ?? '').split(';')) {
    const [name, value] = part.trim().split('=');
    if (name === cookieName && value !== undefined && /^[\w-]{20,100}$/.test(value)) return value;
  }
  return undefined;
}

export function setSessionCookie(request: Request, response: Response, token: string): void {
  response.append('Set-Cookie', cookieText(request, token, sessionSeconds));
}

export function clearSessionCookie(request: Request, response: Response): void {
  response.append('Set-Cookie', cookieText(request, '', 0));
}

function cookieText(request: Request, value: string, seconds: number): string {
  // TLS ends in front of the daemon, so only the Origin header shows whether the browser uses it.
  const secure = request.get('Origin')?.startsWith('https:') ? '; Secure' : '';
  return `${cookieName}=${value}; Path=/; HttpOnly; SameSite=Strict; Max-Age=${seconds}${secure}`;
}

/** A page of another site must not act with a person's session. Browsers set both headers; scripts cannot. */
export function requireSameOrigin(request: Request): void {
  if (request.method === 'GET' || request.method === 'HEAD') return;
  const site = request.get('Sec-Fetch-Site');
  if (site === 'same-origin') return;
  const origin = request.get('Origin');
  const host = request.get('Host');
  if (site === undefined && origin !== undefined && URL.canParse(origin) && new URL(origin).host === host) return;
  throw problem('FORBIDDEN', 'A request with a session cookie must come from the dashboard itself.');
}
