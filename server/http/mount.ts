// Builds one Express handler from route definitions: finds the route, authenticates, authorizes, reads the body,
// validates, calls and answers, in this order, so that the body of an unauthenticated request is never read.
import type { NextFunction, Request, RequestHandler, Response } from 'express';
import type { Database } from '../database/database.ts';
import { problem } from '../kernel/errors.ts';
import { writeJson } from '../kernel/json/json-text.ts';
import { type Authenticate, authorize, callerOf } from './request/authenticate.ts';
import { type ByteBudget, readJsonBody } from './request/body.ts';
import { validateInput } from './request/input.ts';
import type { Leave, Turns } from './request/turns.ts';
import type { UnreadAnswers } from './request/unread-answers.ts';
import { handled, Reply, type RouteContext, type RouteDefinition, type RouteGroup } from './route.ts';

interface RequestLimits {
  db: Database;
  budget: ByteBudget;
  turns: Turns;
  unread: UnreadAnswers;
}

// Responses contain data and keys of tenants, so no cache may store them.
export const refuseCaching: Header = ['Cache-Control', 'no-store'];

export type Header = readonly [name: string, value: string];

interface Resource {
  handlers: Map<string, RequestHandler[]>;
  /** For the header Allow. */
  allowed: string;
}

/** All routes. A request for another path goes to the next handler. */
export class Dispatcher {
  readonly #paths: PathTable<Resource>;
  readonly #headers: readonly Header[];

  /** `headers` are set for every response. */
  constructor(
    groups: readonly RouteGroup[],
    authenticate: Authenticate,
    { headers, ...limits }: RequestLimits & { headers: readonly Header[] },
  ) {
    this.#paths = resourcesOf(groups, authenticate, limits);
    this.#headers = [...headers, refuseCaching];
  }

  readonly handle: RequestHandler = (request, response, next) => {
    const found = this.find(request.path);
    if (found === undefined) return next();
    this.answer(found, request, response, next);
  };

  find(path: string): Match<Resource> | undefined {
    try {
      return this.#paths.find(path);
    } catch {
      throw problem('BAD_REQUEST', 'The address of the request is not valid.');
    }
  }

  /** Errors are passed to `next`. */
  answer({ value, params }: Match<Resource>, request: Request, response: Response, next: NextFunction): void {
    for (const [name, text] of this.#headers) response.setHeader(name, text);
    const method = request.method === 'HEAD' ? 'GET' : request.method;
    const chosen = value.handlers.get(method);
    if (chosen === undefined) return void refuseMethod(request, response, value.allowed, next);
    request.params = params;
    runInOrder(chosen, request, response, next);
  }
}

function resourcesOf(
  groups: readonly RouteGroup[],
  authenticate: Authenticate,
  limits: RequestLimits,
): PathTable<Resource> {
  const byPath = new Map<string, RouteDefinition[]>();
  for (const definition of groups.flatMap((group) => group.definitions)) {
    const others = byPath.get(definition.path) ?? [];
    if (others.some(({ method }) => method === definition.method)) {
      throw new Error(`two routes for ${definition.method} ${definition.path}`);
    }
    byPath.set(definition.path, [...others, definition]);
  }
  const paths = new PathTable<Resource>();
  for (const [path, definitions] of byPath) {
    const handlers = new Map(
      definitions.map((one) => [one.method.toUpperCase(), handlersOf(one, authenticate, limits)]),
    );
    const allowed = [...handlers.keys(), ...(handlers.has('GET') ? ['HEAD'] : []), 'OPTIONS'].join(', ');
    paths.add(path, { handlers, allowed });
  }
  return paths;
}

function runInOrder(handlers: RequestHandler[], request: Request, response: Response, next: NextFunction): void {
  let at = 0;
  const step = (error?: unknown) => {
    if (error !== undefined) return next(error);
    try {
      void handlers[at++]?.(request, response, step as NextFunction);
    } catch (thrown) {
      next(thrown);
    }
  };
  step();
}

function handlersOf(definition: RouteDefinition, authenticate: Authenticate, limits: RequestLimits): RequestHandler[] {
  const handlers: RequestHandler[] = [];
  if (definition.access !== 'public') handlers.push(authenticate, authorize(definition));
  if (definition.body) {
    const { bodyLimitBytes: limitBytes, partLimitBytes } = definition;
    handlers.push(readJsonBody({ limitBytes, partLimitBytes }, limits.budget));
  }
  handlers.push((request, response, next) => answer(definition, limits, request, response, next));
  return handlers;
}

async function answer(
  definition: RouteDefinition,
  limits: RequestLimits,
  request: Request,
  response: Response,
  next: NextFunction,
) {
  const { turns, unread } = limits;
  const holder = definition.access === 'public' ? everybody : (callerOf(response)?.tenant?.id ?? operator);
  let leave: Leave | undefined;
  try {
    const context = contextOf(definition, limits, request, response);
    // A public answer is small, or shared by all who ask for it.
    if (holder !== everybody) unread.admit(holder);
    if (definition.access !== 'public' && definition.turns !== 'own') {
      const turn = turns.take(definition.turns === 'renewal' ? `${holder} renewals` : holder);
      leave = typeof turn === 'function' ? turn : await turn;
      // The client disconnected while it waited.
      if (response.destroyed) return;
    }
    const value = await definition.handle(context as Parameters<RouteDefinition['handle']>[0]);
    leave?.();
    if (value !== handled) {
      const reply = value instanceof Reply ? value : new Reply(firstStatus(definition), value, {});
      send(definition, reply, request, response);
    }
    unread.wrote(response, holder);
  } catch (error) {
    next(error);
  } finally {
    leave?.();
  }
}

function send(
  { contentType }: RouteDefinition,
  { status, headers, body }: Reply,
  request: Request,
  response: Response,
) {
  response.statusCode = status;
  for (const name in headers) response.setHeader(name, headers[name] as string);
  if (headers.Location !== undefined) response.setHeader('Location', request.baseUrl + headers.Location);
  if (body === undefined) return void response.end();
  if (typeof body === 'string' && contentType) return void response.type(contentType).send(body);
  const text = writeJson(body as object);
  response.setHeader('Content-Type', 'application/json; charset=utf-8');
  response.setHeader('Content-Length', Buffer.byteLength(text));
  response.end(text);
}

/** The id under which requests of operators share turns. */
const operator = '';
const everybody = 'public';

function contextOf(
  definition: RouteDefinition,
  { db, turns }: RequestLimits,
  request: Request,
  response: Response,
): RouteContext {
  const caller = callerOf(response);
  return {
    db: caller?.tenant ? db.forTenant(caller.tenant.schema) : db,
    ...validateInput(definition, request),
    tenant: caller?.tenant as RouteContext['tenant'],
    key: caller?.key as RouteContext['key'],
    actor: caller ? (caller.actor ?? `key:${caller.key.id}`) : 'public',
    withTurn: (work) => turns.within(caller?.tenant?.id ?? operator, work),
    request,
    response,
  };
}

function firstStatus(definition: RouteDefinition): number {
  return Number(Object.keys(definition.answers)[0] ?? 200);
}

function refuseMethod({ method }: Request, response: Response, allowed: string, next: NextFunction): void {
  response.setHeader('Allow', allowed);
  if (method !== 'OPTIONS') {
    return void next(problem('METHOD_NOT_ALLOWED', `${method} is not allowed here; allowed: ${allowed}.`));
  }
  response.statusCode = 204;
  response.end();
}

interface Node<T> {
  literals: Map<string, Node<T>>;
  parameter: Node<T> | undefined;
  entry: { value: T; names: string[] } | undefined;
}

export interface Match<T> {
  value: T;
  /** The decoded values. */
  params: Record<string, string>;
}

/**
 * Finds the entry for the path of a request, in a time that does not grow with the number of paths. Literal segments
 * come before parameters, so `/jobs/bulk` is not read as a job's id.
 * @internal
 */
export class PathTable<T> {
  readonly #root: Node<T> = createNode();

  /** `/api/jobs/{job_id}`. */
  add(path: string, value: T): void {
    let node = this.#root;
    const names: string[] = [];
    for (const segment of segmentsOf(path)) {
      if (segment.startsWith('{')) {
        names.push(segment.slice(1, -1));
        node.parameter ??= createNode();
        node = node.parameter;
      } else {
        const next = node.literals.get(segment) ?? createNode<T>();
        node.literals.set(segment, next);
        node = next;
      }
    }
    node.entry = { value, names };
  }

  /** A trailing slash is tolerated. Throws a URIError for a parameter that cannot be decoded. */
  find(path: string): Match<T> | undefined {
    const segments = segmentsOf(path.length > 1 && path.endsWith('/') ? path.slice(0, -1) : path);
    const given: string[] = [];
    const entry = walk(this.#root, segments, 0, given);
    if (entry === undefined) return undefined;
    const params: Record<string, string> = {};
    entry.names.forEach((name, n) => {
      params[name] = decodeURIComponent(given[n] as string);
    });
    return { value: entry.value, params };
  }
}

function walk<T>(node: Node<T>, segments: string[], at: number, given: string[]): Node<T>['entry'] {
  const segment = segments[at];
  if (segment === undefined) return node.entry;
  const literal = node.literals.get(segment);
  const found = literal && walk(literal, segments, at + 1, given);
  if (found !== undefined || node.parameter === undefined || segment === '') return found;
  given.push(segment);
  const below = walk(node.parameter, segments, at + 1, given);
  if (below === undefined) given.pop();
  return below;
}

function segmentsOf(path: string): string[] {
  return path.slice(1).split('/');
}

function createNode<T>(): Node<T> {
  return { literals: new Map(), parameter: undefined, entry: undefined };
}
