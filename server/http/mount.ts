// Turns route definitions into Express handlers: authenticate, authorize, read the body, validate, call, answer. In this
// order, so that the body of an unauthenticated request is never read.
import type { Express, IRoute, NextFunction, Request, RequestHandler, Response } from 'express';
import { problem } from '../kernel/errors.ts';
import { type Authenticate, authorize, callerOf } from './request/authenticate.ts';
import { type ByteBudget, readJsonBody } from './request/body.ts';
import { validateInput } from './request/input.ts';
import type { Leave, Turns } from './request/turns.ts';
import { handled, Reply, type RouteContext, type RouteDefinition, type RouteGroup } from './route.ts';

export interface RequestLimits {
  budget: ByteBudget;
  turns: Turns;
}

export function mountRoutes(
  app: Express,
  groups: readonly RouteGroup[],
  authenticate: Authenticate,
  { budget, turns }: RequestLimits,
): void {
  const definitions = groups.flatMap((group) => group.definitions).sort(bySpecificity);
  // One Express route per path: the path is compiled once for all its methods.
  const paths = new Map<string, { route: IRoute; methods: Set<string> }>();
  for (const definition of definitions) {
    const path = expressPath(definition.path);
    const { route, methods } = paths.get(path) ?? { route: app.route(path), methods: new Set<string>() };
    paths.set(path, { route, methods });
    if (methods.has(definition.method)) throw new Error(`two routes for ${definition.method} ${definition.path}`);
    methods.add(definition.method);
    route[definition.method](...handlersOf(definition, authenticate, { budget, turns }));
  }
  for (const { route, methods } of paths.values()) route.all(refuseMethod(methods));
}

function handlersOf(
  definition: RouteDefinition,
  authenticate: Authenticate,
  { budget, turns }: RequestLimits,
): RequestHandler[] {
  const handlers: RequestHandler[] = [];
  if (definition.access !== 'public') handlers.push(authenticate, authorize(definition));
  if (definition.body) {
    const { bodyLimitBytes: limitBytes, partLimitBytes } = definition;
    handlers.push(readJsonBody({ limitBytes, partLimitBytes }, budget));
  }
  handlers.push((request, response, next) => answer(definition, turns, request, response, next));
  return handlers;
}

async function answer(
  definition: RouteDefinition,
  turns: Turns,
  request: Request,
  response: Response,
  next: NextFunction,
) {
  let leave: Leave | undefined;
  try {
    const context = contextOf(definition, turns, request, response);
    if (definition.access !== 'public' && definition.turns !== 'own') {
      const holder = context.tenant?.id ?? operator;
      const turn = turns.take(definition.turns === 'renewal' ? `${holder} renewals` : holder);
      leave = typeof turn === 'function' ? turn : await turn;
      // The client disconnected while it waited.
      if (response.destroyed) return;
    }
    const value = await definition.handle(context as Parameters<RouteDefinition['handle']>[0]);
    leave?.();
    if (value === handled) return;
    const reply = value instanceof Reply ? value : new Reply(firstStatus(definition), value, {});
    response.status(reply.status).set(reply.headers);
    if (reply.headers.Location !== undefined) response.set('Location', request.baseUrl + reply.headers.Location);
    if (reply.body === undefined) response.end();
    else if (typeof reply.body === 'string' && definition.contentType)
      response.type(definition.contentType).send(reply.body);
    else response.json(reply.body);
  } catch (error) {
    next(error);
  } finally {
    leave?.();
  }
}

/** The id under which requests of operators share turns. */
const operator = '';

function contextOf(definition: RouteDefinition, turns: Turns, request: Request, response: Response): RouteContext {
  const caller = callerOf(response);
  return {
    ...validateInput(definition, request),
    tenant: caller?.tenant as RouteContext['tenant'],
    key: caller?.key as RouteContext['key'],
    actor: caller ? (caller.actor ?? `key:${caller.key.id}`) : 'public',
    withTurn: (work) => turns.within(caller?.tenant?.id ?? operator, work),
    logger: request.log,
    request,
    response,
  };
}

function firstStatus(definition: RouteDefinition): number {
  return Number(Object.keys(definition.answers)[0] ?? 200);
}

function refuseMethod(allowed: Set<string>): RequestHandler {
  const names = [...allowed, ...(allowed.has('get') ? ['head'] : []), 'options'].map((m) => m.toUpperCase()).join(', ');
  return (request, response) => {
    response.set('Allow', names);
    if (request.method === 'OPTIONS') {
      response.status(204).end();
      return;
    }
    throw problem('METHOD_NOT_ALLOWED', `${request.method} is not allowed here; allowed: ${names}.`);
  };
}

/** Literal segments come before parameters: `/jobs/bulk` must not be read as a job's id. */
function bySpecificity(a: RouteDefinition, b: RouteDefinition): number {
  const [first, second] = [specificity(a.path), specificity(b.path)];
  if (first === second) return 0;
  return first < second ? -1 : 1;
}

function specificity(path: string): string {
  return path
    .split('/')
    .map((segment) => (segment.startsWith('{') ? '1' : '0'))
    .join('');
}

function expressPath(path: string): string {
  return path.replace(/\{(\w+)\}/g, ':$1');
}
