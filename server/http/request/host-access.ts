// Access to an API that is part of another program. That program decides who calls, not API keys.
import type { Request, RequestHandler } from 'express';
import { problem } from '../../kernel/errors.ts';
import { type ApiKey, scopes as allScopes, type Scope } from '../../tenants/api-keys/key.ts';
import type { TenantRegistry } from '../../tenants/registry.ts';
import { type Authenticate, type Caller, callerOf, operatorScopes, tenantHeader } from './authenticate.ts';

/** The caller, according to the host. */
interface HostCaller {
  /**
   * The slug of the tenant. Without one the caller is an operator: for /api/admin, and for the tenant that the header
   * `X-Leasehold-Tenant` names.
   */
  tenant?: string | undefined;
  /** The default is all scopes. */
  scopes?: readonly Scope[] | undefined;
  /** The actor in events and the audit log, such as `user:ada`. */
  actor: string;
}

/** Returns undefined to refuse the request with 401. */
export type AuthorizeRequest = (
  request: Request,
) => HostCaller | undefined | null | Promise<HostCaller | undefined | null>;

export interface Access {
  /** Without it callers need an API key or a session of the dashboard. */
  authorize?: AuthorizeRequest | undefined;
  /** Refuses every change, whatever the caller's scopes. */
  readOnly?: boolean | undefined;
}

type Registry = Pick<TenantRegistry, 'bySlug' | 'refresh'>;

export function authenticateByHost(authorize: AuthorizeRequest, registry: Registry) {
  const identify = async (request: Request): Promise<Caller | undefined> => {
    const caller = await authorize(request);
    if (!caller) return undefined;
    const selected = caller.tenant === undefined ? request.get(tenantHeader) : undefined;
    return toCaller(caller, selected, registry, () => identify(request));
  };
  const authenticate: Authenticate = async (request, response, next) => {
    try {
      const caller = await identify(request);
      if (caller === undefined) throw problem('UNAUTHORIZED', 'Sign in first.');
      response.locals.caller = caller;
      next();
    } catch (error) {
      next(error);
    }
  };
  return { identify, authenticate };
}

async function toCaller(
  { tenant: own, scopes: given = allScopes, actor }: HostCaller,
  selected: string | undefined,
  registry: Registry,
  again: () => Promise<Caller | undefined>,
): Promise<Caller> {
  const slug = own ?? selected;
  const isOperator = own === undefined;
  const scopes = isOperator ? given.filter((scope) => operatorScopes.includes(scope)) : given;
  if (slug !== undefined && registry.bySlug(slug) === undefined) await registry.refresh();
  const tenant = slug === undefined ? undefined : registry.bySlug(slug);
  if (slug !== undefined && tenant === undefined) throw problem('NOT_FOUND', `There is no tenant ${slug}.`);
  const key: ApiKey = {
    id: actor,
    name: actor,
    tenantId: isOperator ? null : (tenant?.id ?? null),
    scopes,
    createdAt: new Date(0).toISOString(),
    expiresAt: null,
    revokedAt: null,
    lastUsedAt: null,
  };
  return { key, tenant, actor, recheck: async () => (await again())?.key };
}

export function readingOnly(authenticate: Authenticate): RequestHandler {
  return (request, response, next) => {
    const limit = (error?: unknown) => {
      const caller = callerOf(response);
      if (caller !== undefined) response.locals.caller = { ...caller, readOnly: true };
      next(error);
    };
    return authenticate(request, response, limit as typeof next);
  };
}
