// The Express app: middleware for every request, the routes, then the responses for requests without a route.
import type { ErrorRequestHandler, Express, Request, RequestHandler, Response, Router } from 'express';
import express from 'express';
import helmet from 'helmet';
import type { Registry as MetricsRegistry } from 'prom-client';
import type { Database } from '../database/database.ts';
import {
  isConflict,
  isConnectionError,
  isLockTimeout,
  isMissingTable,
  isWriteError,
  sqlState,
} from '../database/sql-errors.ts';
import { ownTurn } from '../kernel/clock.ts';
import type { Config } from '../kernel/config.ts';
import { Problem, problem } from '../kernel/errors.ts';
import type { Logger } from '../kernel/logger.ts';
import { Sessions } from '../tenants/api-keys/sessions.ts';
import type { KeyVerifier } from '../tenants/api-keys/verifier.ts';
import type { TenantRegistry } from '../tenants/registry.ts';
import type { Tenant } from '../tenants/tenant.ts';
import { Dispatcher, type Header, refuseCaching } from './mount.ts';
import { callerOf, createAuthenticate } from './request/authenticate.ts';
import { ByteBudget } from './request/body.ts';
import { type Access, authenticateByHost, readingOnly } from './request/host-access.ts';
import { logRequests } from './request/request-log.ts';
import { Turns } from './request/turns.ts';
import { UnreadAnswers } from './request/unread-answers.ts';
import { healthRoutes, type ReadinessState } from './resources/health.ts';
import { adminKeyRoutes, keyRoutes } from './resources/keys.ts';
import { sessionRoutes } from './resources/session.ts';
import { adminTenantRoutes } from './resources/tenants.ts';
import { handled, RouteGroup } from './route.ts';
import { answerDirectly } from './server.ts';

export interface AppDependencies {
  config: Config;
  db: Database;
  logger: Logger;
  registry: TenantRegistry;
  keys: KeyVerifier;
  metricsRegistry: MetricsRegistry;
  /** The state of the daemon: migrations, drain, additional checks. */
  readiness(): ReadinessState;
  /** Further routes: jobs, scheduler, events… */
  routes?: readonly RouteGroup[];
  /** The dashboard: plain routers, mounted without authentication. */
  pages?: readonly Router[];
  version?: string;
  /** Set if the API is part of another program. */
  access?: Access;
}

export function createApp(deps: AppDependencies): Express {
  const app = express();
  app.disable('x-powered-by');
  app.disable('etag');
  app.set('case sensitive routing', true);
  const log = logRequests(app, deps.logger);
  app.use(log);
  const sessions = new Sessions(deps.db, deps.keys);
  const host = deps.access?.authorize && authenticateByHost(deps.access.authorize, deps.registry);
  const hostKey = host && (async (request: Request) => (await host.identify(request))?.key);
  const groups = [
    healthRoutes(deps),
    adminTenantRoutes(deps),
    adminKeyRoutes(deps),
    keyRoutes(deps),
    sessionRoutes({ ...deps, sessions, hostKey }),
    ...(deps.routes ?? []),
  ];
  groups.push(openApiRoutes(groups, deps.version ?? '0.0.0'));
  const { config, registry } = deps;
  const authenticate = host?.authenticate ?? createAuthenticate({ ...deps, sessions });
  const headers = headersOf(helmet(security));
  const routes = new Dispatcher(groups, deps.access?.readOnly ? readingOnly(authenticate) : authenticate, {
    db: deps.db,
    budget: new ByteBudget(config.requestMemoryBytes),
    turns: new Turns({
      connections: config.databasePoolMax,
      tenantShare: config.databaseTenantShare,
      tenants: () => registry.list().length,
    }),
    unread: new UnreadAnswers({ limitBytes: config.requestMemoryBytes / 2 }),
    headers: headers.filter(([name]) => dataHeaders.includes(name)),
  });
  app.use(routes.handle);
  app.use(setHeaders(headers));
  for (const page of deps.pages ?? []) app.use(page);
  app.use(setHeaders([refuseCaching]));
  app.use(answerNotFound);
  const onProblem = answerProblem(deps.registry);
  app.use(onProblem);
  answerDirectly(app, { log, routes, answerProblem: onProblem });
  return app;
}

function openApiRoutes(groups: readonly RouteGroup[], version: string): RouteGroup {
  const group = new RouteGroup('Service');
  // As bytes, which all answers share: anybody may ask for it.
  let document: Promise<Buffer> | undefined;
  group.route({
    method: 'get',
    path: '/openapi.json',
    summary: 'This description of the API',
    access: 'public',
    answers: { 200: null },
    async handle({ response }) {
      document ??= loadOpenApi(groups, version);
      const bytes = await document;
      response.setHeader('Content-Type', 'application/json; charset=utf-8');
      response.setHeader('Content-Length', bytes.length);
      response.end(bytes);
      return handled;
    },
  });
  return group;
}

/** Created with the first request for it, because most daemons never get one. */
async function loadOpenApi(groups: readonly RouteGroup[], version: string): Promise<Buffer> {
  await import('@asteasolutions/zod-to-openapi');
  await ownTurn();
  const { buildOpenApi } = await import('./openapi.ts');
  await ownTurn();
  return Buffer.from(JSON.stringify(await buildOpenApi([...groups], version)));
}

function setHeaders(headers: readonly Header[]): RequestHandler {
  return (_request, response, next) => {
    for (const [name, value] of headers) response.setHeader(name, value);
    next();
  };
}

/** The headers that a middleware sets. They are equal for every request, so it need not run for each. */
function headersOf(middleware: ReturnType<typeof helmet>): Header[] {
  const headers: Header[] = [];
  const response = { setHeader: (...header: Header) => headers.push(header), removeHeader: () => {} };
  middleware({} as Request, response as unknown as Response, () => {});
  return headers;
}

/** The headers for JSON answers; the others are for pages. */
const dataHeaders = ['Content-Security-Policy', 'X-Content-Type-Options', 'Cross-Origin-Resource-Policy'];

// TLS ends in front of the daemon, if it is used at all, so no header may require it of browsers.
const security: Parameters<typeof helmet>[0] = {
  strictTransportSecurity: false,
  contentSecurityPolicy: {
    useDefaults: false,
    directives: {
      defaultSrc: ["'self'"],
      imgSrc: ["'self'", 'data:'],
      styleSrc: ["'self'", "'unsafe-inline'"],
      objectSrc: ["'none'"],
      baseUri: ["'self'"],
      formAction: ["'self'"],
      frameAncestors: ["'none'"],
    },
  },
};

// Error responses: RFC 9457 problems with a `code` from the catalogue. Unexpected errors are logged in full; the
// response does not contain their text.
function answerProblem(registry: Pick<TenantRegistry, 'byId' | 'refresh'>): ErrorRequestHandler {
  return async (error, request, response, next) => {
    const found = (await fromDeletedTenant(error, callerOf(response)?.tenant, registry)) ?? toProblem(error);
    if (found.httpStatus >= 500) logFailure(request.log, error, found);
    // The response has started. The connection is closed, so that the client notices.
    if (response.headersSent) return next(error);
    if (found.httpStatus === 503 || found.code === 'TOO_MANY_REQUESTS') response.set('Retry-After', '2');
    response.status(found.httpStatus).type('application/problem+json');
    response.send(
      JSON.stringify({
        ...withoutStatus(found.extra),
        type: `urn:leasehold:problem:${found.code}`,
        title: found.title,
        status: found.httpStatus,
        detail: found.message,
        code: found.code,
        instance: request.path,
        request_id: request.id,
      }),
    );
  };
}

/** An expected refusal needs no stack. Availability logs what concerns the whole database. */
function logFailure(log: Logger, error: unknown, { code, message }: Problem): void {
  if (error instanceof Problem || isLockTimeout(error) || isConflict(error))
    log.warn({ code, reason: message }, 'request refused');
  else log.error({ err: error, code }, 'request failed');
}

/** A table is missing because its tenant was deleted during the request. */
async function fromDeletedTenant(
  error: unknown,
  tenant: Tenant | undefined,
  registry: Pick<TenantRegistry, 'byId' | 'refresh'>,
): Promise<Problem | undefined> {
  if (tenant === undefined || !isMissingTable(error)) return undefined;
  await registry.refresh().catch(() => {});
  const status = registry.byId(tenant.id)?.status ?? 'DELETING';
  if (status !== 'DELETING') return undefined;
  return problem('TENANT_SUSPENDED', 'The tenant is being deleted.', { status });
}

/** RFC 9457 reserves `status` for the HTTP status; the status of a job or tenant gets another name. */
function withoutStatus({ status, ...extra }: Record<string, unknown>): Record<string, unknown> {
  return status === undefined ? extra : { ...extra, current_status: status };
}

const answerNotFound: RequestHandler = (request) => {
  throw problem('NOT_FOUND', `There is nothing at ${request.method} ${request.path.slice(0, 200)}.`);
};

function toProblem(error: unknown): Problem {
  if (error instanceof Problem) return error;
  return (
    fromBodyParser(error) ??
    fromDatabase(error) ??
    problem('INTERNAL', 'An unexpected error occurred; the log of the daemon has it under this request_id.')
  );
}

/** body-parser and Express mark client errors with a `type` or a 4xx `status`. */
function fromBodyParser(error: unknown): Problem | undefined {
  if (!(error instanceof Error) || !('status' in error) || typeof error.status !== 'number') return undefined;
  if (error.status < 400 || error.status > 499) return undefined;
  const type = 'type' in error ? error.type : undefined;
  switch (type) {
    case 'entity.parse.failed':
      return problem('INVALID_JSON', `The body is not valid JSON: ${error.message.slice(0, 200)}`);
    case 'entity.too.large':
      return problem(
        'PAYLOAD_TOO_LARGE',
        `The body is larger than ${'limit' in error ? error.limit : 'the allowed'} bytes.`,
      );
    case 'encoding.unsupported':
    case 'charset.unsupported':
      return problem('UNSUPPORTED_MEDIA_TYPE', 'The encoding of the body is not supported; send UTF-8 JSON.');
    default:
      return problem(
        'BAD_REQUEST',
        type === undefined ? 'The address of the request is not valid.' : 'The request is incomplete or malformed.',
      );
  }
}

function fromDatabase(error: unknown): Problem | undefined {
  const state = sqlState(error);
  if (isWriteError(error)) {
    return problem('DATABASE_UNAVAILABLE', 'The database cannot write at present; try again soon.');
  }
  // 53: out of connections or memory.
  if (isConnectionError(error) || state?.startsWith('53')) {
    return problem('DATABASE_UNAVAILABLE', 'The database cannot be reached at present; try again soon.');
  }
  if (isConflict(error)) {
    return problem(
      'DATABASE_UNAVAILABLE',
      'Concurrent transactions were in the way several times; nothing was done. Try again soon.',
    );
  }
  if (isLockTimeout(error)) {
    return problem(
      'TARGET_LOCKED',
      'Another transaction holds a lock that this needs; nothing was done. Try again soon.',
    );
  }
  // Canceled by the server after its limit for one statement: rolled back.
  if (state === '57014') {
    return problem('DATABASE_UNAVAILABLE', 'The database did not finish in time; nothing was done. Try again soon.');
  }
  if (state === '42501') {
    return problem(
      'DATABASE_RIGHTS_MISSING',
      'The database role of this daemon lacks a right that this needs. Tenants are created and deleted by a role that may create schemas: use `leasehold tenants` with the URL of leasehold_migrator.',
    );
  }
  // A character that Postgres cannot store. Validation refuses these; this is the backstop.
  if (state === '22021' || state === '22P05')
    return problem('BAD_REQUEST', 'The request contains a character that cannot be stored.');
  return undefined;
}
