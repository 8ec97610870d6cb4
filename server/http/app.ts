// The Express app: middleware for every request, the routes, then the responses for requests without a route.
import express, { type Express, type Request, type RequestHandler, type Response, type Router } from 'express';
import helmet from 'helmet';
import type { Registry as MetricsRegistry } from 'prom-client';
import type { Database } from '../database/database.ts';
import type { Config } from '../kernel/config.ts';
import type { Logger } from '../kernel/logger.ts';
import { Sessions } from '../tenants/api-keys/sessions.ts';
import type { KeyVerifier } from '../tenants/api-keys/verifier.ts';
import type { TenantRegistry } from '../tenants/registry.ts';
import { answerNotFound, answerProblem } from './error-responses.ts';
import { dispatch, refuseCaching } from './mount.ts';
import { createAuthenticate } from './request/authenticate.ts';
import { ByteBudget } from './request/body.ts';
import { type Access, authenticateByHost, readingOnly } from './request/host-access.ts';
import { logRequests } from './request/request-log.ts';
import { Turns } from './request/turns.ts';
import { healthRoutes, type ReadinessState } from './resources/health.ts';
import { adminKeyRoutes, keyRoutes } from './resources/keys.ts';
import { sessionRoutes } from './resources/session.ts';
import { adminTenantRoutes } from './resources/tenants.ts';
import { RouteGroup } from './route.ts';

export interface AppDependencies {
  config: Config;
  db: Database;
  logger: Logger;
  registry: TenantRegistry;
  keys: KeyVerifier;
  metricsRegistry: MetricsRegistry;
  /** State of the daemon: migrations, drain, further checks. */
  readiness(): ReadinessState;
  /** Further routes: jobs, scheduler, events… */
  routes?: readonly RouteGroup[];
  /** The dashboard: plain routers, mounted without authentication. */
  pages?: readonly Router[];
  version?: string;
  /** Of an API that is part of another program. */
  access?: Access;
}

export function createApp(deps: AppDependencies): Express {
  const app = express();
  app.disable('x-powered-by');
  app.disable('etag');
  app.set('case sensitive routing', true);
  app.use(logRequests(app, deps.logger));
  app.use(setHeaders(headersOf(helmet(security))));
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
  app.use(
    dispatch(groups, deps.access?.readOnly ? readingOnly(authenticate) : authenticate, {
      db: deps.db,
      budget: new ByteBudget(config.requestMemoryBytes),
      turns: new Turns({
        connections: config.databasePoolMax,
        tenantShare: config.databaseTenantShare,
        tenants: () => registry.list().length,
      }),
    }),
  );
  for (const page of deps.pages ?? []) app.use(page);
  app.use(setHeaders([refuseCaching]));
  app.use(answerNotFound);
  app.use(answerProblem(deps.registry));
  return app;
}

function openApiRoutes(groups: readonly RouteGroup[], version: string): RouteGroup {
  const group = new RouteGroup('Service');
  let document: unknown;
  group.route({
    method: 'get',
    path: '/openapi.json',
    summary: 'This description of the API',
    access: 'public',
    answers: { 200: null },
    handle: async () => {
      // Loaded with the first request for it: few daemons are asked.
      document ??= (await import('./openapi.ts')).buildOpenApi([...groups], version);
      return document;
    },
  });
  return group;
}

type Header = readonly [name: string, value: string];

function setHeaders(headers: readonly Header[]): RequestHandler {
  return (_request, response, next) => {
    for (const [name, value] of headers) response.setHeader(name, value);
    next();
  };
}

/** The headers that a middleware sets. They are the same for every request, so it need not run for each. */
function headersOf(middleware: ReturnType<typeof helmet>): Header[] {
  const headers: Header[] = [];
  const response = { setHeader: (...header: Header) => headers.push(header), removeHeader: () => {} };
  middleware({} as Request, response as unknown as Response, () => {});
  return headers;
}

// TLS is terminated in front of the daemon, if at all, so browsers must not be made to require it.
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
