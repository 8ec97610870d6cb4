// One definition yields the Express handler, its checks and its OpenAPI entry. A module of routes is a function of its
// dependencies that returns a RouteGroup; the composition root passes it to createApp, which mounts it. Routes only
// parse, call and answer.
//
//   export function targetRoutes(deps: { db: Database }): RouteGroup {
//     const group = new RouteGroup('Targets');
//     group.route({
//       method: 'post',
//       path: '/api/targets/{id}/pause',            // OpenAPI style; a trailing slash is tolerated
//       summary: 'Pause a target',
//       access: 'control',                           // 'public', 'operator', a scope, or any of [scopes]
//       params: z.strictObject({ id: z.string().max(200) }),
//       query: z.strictObject({ wait: booleanQuery() }),   // without it every query field is refused
//       body: z.strictObject({ reason: z.string().max(500).optional() }),
//       bodyOptional: true,                          // a missing body counts as {}
//       answers: { 200: z.strictObject({ target: targetSchema }) },   // null: no body
//       problems: ['NOT_FOUND', 'CONFLICT'],         // beyond those that every route can give
//       async handle({ params, body, tenant, actor }) {
//         return { target: toApi(await pauseTarget(deps.db, tenant, params.id, { ...body, actor })) };
//       },
//     });
//     return group;
//   }
//
// The handler's value is sent with the first status of `answers`; `reply(204)` or
// `reply(201, body, headers)` chooses another; a handler that writes `response` itself (a stream)
// returns `handled`. Errors are thrown: problem(code, detail). Name a schema with `.meta({ id: 'Target' })`
// to have it once under components. All routes of all groups are ordered by path, literals before
// parameters, so the order of definition does not matter. Times in the input are `timeField()`, cursors come
// from `pageQuery()`: request/input.ts refuses a route with any other.
import type { Request, Response } from 'express';
import type { z } from 'zod';
import type { Database } from '../database/database.ts';
import type { ProblemCode } from '../kernel/errors.ts';
import type { ApiKey, Scope } from '../tenants/api-keys/key.ts';
import type { Tenant } from '../tenants/tenant.ts';
import { checkInputRules } from './request/input.ts';

export type Access = 'public' | 'operator' | Scope | readonly Scope[];
type Method = 'get' | 'post' | 'put' | 'patch' | 'delete';

type Parsed<S> = S extends z.ZodType ? z.output<S> : undefined;

export interface RouteContext<A extends Access = Access, P = unknown, Q = unknown, B = unknown> {
  params: P;
  query: Q;
  body: B;
  /** The caller's tenant, which only the key's row decides. */
  tenant: A extends 'public' | 'operator' ? undefined : Tenant;
  key: A extends 'public' ? undefined : ApiKey;
  /** A database for statements on the tenant's tables, which cannot reach those of another tenant. */
  db: Database;
  /** The actor in events and the audit log: `key:<id>`. */
  actor: string;
  /** Runs `work` in one of the tenant's turns at the database; for routes with `turns: 'own'`. */
  withTurn<T>(work: () => Promise<T>): Promise<T>;
  request: Request;
  response: Response;
}

export interface RouteDefinition<
  A extends Access = Access,
  P extends z.ZodObject | undefined = z.ZodObject | undefined,
  Q extends z.ZodObject | undefined = z.ZodObject | undefined,
  B extends z.ZodType | undefined = z.ZodType | undefined,
> {
  method: Method;
  path: `/${string}`;
  summary: string;
  description?: string;
  access: A;
  params?: P;
  query?: Q;
  body?: B;
  /** A missing body counts as `{}`. */
  bodyOptional?: boolean;
  /** The default is 1 MB. */
  bodyLimitBytes?: number;
  /**
   * For large bodies: the elements of lists in the body are read one by one, as JsonParts of at most this many bytes.
   */
  partLimitBytes?: number;
  /** Allowed while the tenant is suspended, for writes that only finish running work. */
  allowSuspended?: boolean;
  /**
   * A request takes one of its tenant's turns at the database. `own`: the handler waits for long, or shares its
   * statements with other requests, and takes a turn when it needs one. `renewal`: it renews a lease and must not wait
   * behind the tenant's other requests.
   */
  turns?: 'own' | 'renewal';
  /** Status → schema of the body, or null. A plain return value is sent with the first status. */
  answers: Record<number, z.ZodType | null>;
  /** The media type of answers that are not JSON, such as `text/event-stream`. */
  contentType?: string;
  problems?: readonly ProblemCode[];
  handle(context: RouteContext<A, Parsed<P>, Parsed<Q>, Parsed<B>>): unknown;
}

export class RouteGroup {
  readonly tag: string;
  readonly definitions: RouteDefinition[] = [];

  constructor(tag: string) {
    this.tag = tag;
  }

  route<
    A extends Access,
    P extends z.ZodObject | undefined = undefined,
    Q extends z.ZodObject | undefined = undefined,
    B extends z.ZodType | undefined = undefined,
  >(definition: RouteDefinition<A, P, Q, B>): void {
    const checked = definition as unknown as RouteDefinition;
    checkInputRules(checked);
    this.definitions.push(checked);
  }
}

export class Reply {
  readonly status: number;
  readonly body: unknown;
  readonly headers: Record<string, string>;
  constructor(status: number, body: unknown, headers: Record<string, string>) {
    this.status = status;
    this.body = body;
    this.headers = headers;
  }
}

/** Creates a response with another status, or with headers. */
export function reply(status: number, body?: unknown, headers: Record<string, string> = {}): Reply {
  return new Reply(status, body, headers);
}

/** Returned by a handler that has written the response itself. */
export const handled: unique symbol = Symbol('handled');
