// Request ids, the access log and the audit lines. Headers, query strings and bodies are not logged: they may hold keys.
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { RequestHandler, Response } from 'express';
import { pinoHttp } from 'pino-http';
import { v7 as uuidv7 } from 'uuid';
import type { Logger } from '../../kernel/logger.ts';
import type { RouteContext } from '../route.ts';

// Longer than any path of the API with its ids.
const maxPathLength = 500;
// Log lines per second about requests without a valid key. Further ones are counted and reported in one line.
const maxUnauthenticatedPerSecond = 10;

export function logRequests(logger: Logger): RequestHandler {
  return pinoHttp({
    logger,
    genReqId: (request, response) => {
      const id = acceptedId(request.headers['x-request-id']) ?? uuidv7();
      response.setHeader('X-Request-Id', id);
      return id;
    },
    customLogLevel: levels(logger),
    quietReqLogger: true,
    customAttributeKeys: { reqId: 'requestId' },
    serializers: {
      req: (request: { method: string; url: string }) => ({
        method: request.method,
        path: request.url.split('?', 1)[0]?.slice(0, maxPathLength),
      }),
      res: (response: { statusCode: number }) => ({ status: response.statusCode }),
    },
  }) as unknown as RequestHandler;
}

/** Logs a change of tenants, keys or webhooks: who, what, in which request. */
export function audit(
  context: Pick<RouteContext, 'actor' | 'logger'>,
  action: string,
  fields: Record<string, unknown>,
): void {
  context.logger.info({ audit: action, actor: context.actor, ...fields }, 'audit');
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
  return (request: IncomingMessage, response: ServerResponse, error?: Error) => {
    const wanted = level(request, response, error);
    const isKnown = (response as Partial<Response>).locals?.caller !== undefined;
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

// Successes are counted by the metrics; at thousands of requests a second they would fill the log.
function level(_request: IncomingMessage, response: ServerResponse, error?: Error) {
  // 503 is the state of the database or of a drain, logged once elsewhere; probes and clients repeat it every second.
  if (response.statusCode === 503) return 'debug';
  if (error || response.statusCode >= 500) return 'error';
  return response.statusCode >= 400 ? 'info' : 'debug';
}
