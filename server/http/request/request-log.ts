// Request ids, the access log and the audit lines. Headers, query strings, bodies and tokens of links are not logged.
import { randomUUID } from 'node:crypto';
import type { Socket } from 'node:net';
import type { Express, Request, RequestHandler, Response } from 'express';
import type { Logger } from '../../kernel/logger.ts';
import type { RouteContext } from '../route.ts';

// Longer than any path of the API with its ids.
const maxPathLength = 500;
// Log lines per second about requests without a valid key. More requests are counted and reported in one line.
const maxUnauthenticatedPerSecond = 10;

declare module 'http' {
  interface IncomingMessage {
    /** The caller's id, or a new one. */
    id: string;
    /** Its lines have the request id. */
    log: Logger;
  }
}

/** Gives each request its id and its logger, and logs it when its response is closed. */
export function logRequests(app: Express, logger: Logger): RequestHandler {
  // Most requests log nothing, so their logger is created on first use. A host that embeds the API may have set its
  // own.
  Object.defineProperty(app.request, 'log', {
    get(this: Request) {
      return logger.child({ requestId: this.id });
    },
    set(this: Request, value: Logger) {
      Object.defineProperty(this, 'log', { value, writable: true, configurable: true, enumerable: true });
    },
  });
  const levelOf = levels(logger);
  return (request, response, next) => {
    if (request.id === undefined) {
      request.id = acceptedId(request.headers['x-request-id']) ?? randomUUID();
      response.setHeader('X-Request-Id', request.id);
    }
    closeWithConnection(request, response);
    const startedAt = performance.now();
    // Without the query string, and before a router changes it.
    const path = request.url;
    let failure: Error | undefined;
    // Without a listener, an error of the response would end the process.
    response.on('error', (error) => {
      failure ??= error;
    });
    response.on('close', () => {
      const level = levelOf(response, failure);
      if (level === 'silent' || !logger.isLevelEnabled(level)) return;
      const fields = {
        req: { method: request.method, path: loggedPath(path) },
        res: { status: response.statusCode },
        responseTime: Math.round(performance.now() - startedAt),
      };
      if (failure === undefined && response.statusCode < 500) {
        const isComplete = !request.readableAborted && response.writableEnded;
        request.log[level](fields, isComplete ? 'request completed' : 'request aborted');
      } else {
        const err = failure ?? new Error(`failed with status code ${response.statusCode}`);
        request.log[level]({ ...fields, err }, 'request errored');
      }
    });
    next();
  };
}

const unassigned = new WeakMap<Socket, Set<Response>>();

/**
 * A request that was sent before the answer to an earlier one was complete has no connection for its own answer yet. If
 * the connection ends first, Node emits no `close` for that answer, and what the request holds would never be released.
 */
function closeWithConnection({ socket }: Request, response: Response): void {
  if (response.socket !== null) return;
  let waiting = unassigned.get(socket);
  if (waiting === undefined) {
    const all = new Set<Response>();
    waiting = all;
    unassigned.set(socket, all);
    socket.once('close', () => {
      for (const one of all) {
        one.destroy();
        one.emit('close');
      }
    });
  }
  waiting.add(response);
  response.once('socket', () => waiting.delete(response));
}

/** Omits the query and the token of a link, which opens a question for everybody who reads it. */
function loggedPath(url: string): string | undefined {
  return url
    .split('?', 1)[0]
    ?.replace(/\/q\/[^/]{20,}/g, '/q/[token]')
    .slice(0, maxPathLength);
}

/** Logs a change of tenants, keys or webhooks: the author, the change and the request. */
export function audit(
  context: Pick<RouteContext, 'actor' | 'request'>,
  action: string,
  fields: Record<string, unknown>,
): void {
  context.request.log.info({ audit: action, actor: context.actor, ...fields }, 'audit');
}

/** A caller's own request id is kept if it is harmless in logs and headers. */
function acceptedId(given: string | string[] | undefined): string | undefined {
  return typeof given === 'string' && /^[A-Za-z0-9._:-]{1,128}$/.test(given) ? given : undefined;
}

/** Bounds the lines about requests without a valid key, so that they cannot fill the log. */
function levels(logger: Logger) {
  let second = 0;
  let written = 0;
  let omitted = 0;
  return (response: Response, error: Error | undefined) => {
    const wanted = level(response, error);
    const isKnown = response.locals?.caller !== undefined;
    if (isKnown || wanted === 'debug' || wanted === 'error') return wanted;
    const now = Math.floor(performance.now() / 1000);
    if (now !== second) {
      if (omitted > 0) logger.info({ requests: omitted }, 'requests without a valid key were not logged one by one');
      second = now;
      written = 0;
      omitted = 0;
    }
    if (written >= maxUnauthenticatedPerSecond) {
      omitted++;
      return 'silent';
    }
    written++;
    return wanted;
  };
}

// Metrics count successes. At thousands of requests a second they would fill the log.
function level(response: Response, error: Error | undefined) {
  // 503 is the state of the database or of a drain, which is logged once elsewhere; probes and clients repeat it every
  // second.
  if (response.statusCode === 503) return 'debug';
  if (error || response.statusCode >= 500) return 'error';
  return response.statusCode >= 400 ? 'info' : 'debug';
}
