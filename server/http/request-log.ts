// Request ids and the access log. Headers, query strings and bodies stay out: they may hold keys.
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { RequestHandler } from 'express';
import { pinoHttp } from 'pino-http';
import { v7 as uuidv7 } from 'uuid';
import type { Logger } from '../kernel/logger.ts';

export function logRequests(logger: Logger): RequestHandler {
  return pinoHttp({
    logger,
    genReqId: (request, response) => {
      const id = acceptedId(request.headers['x-request-id']) ?? uuidv7();
      response.setHeader('X-Request-Id', id);
      return id;
    },
    customLogLevel: level,
    quietReqLogger: true,
    customAttributeKeys: { reqId: 'requestId' },
    serializers: {
      req: (request: { method: string; url: string }) => ({ method: request.method, path: request.url.split('?')[0] }),
      res: (response: { statusCode: number }) => ({ status: response.statusCode }),
    },
  }) as unknown as RequestHandler;
}

/** A caller's own id is kept if it is harmless in logs and headers. */
function acceptedId(given: string | string[] | undefined): string | undefined {
  return typeof given === 'string' && /^[A-Za-z0-9._:-]{1,128}$/.test(given) ? given : undefined;
}

// Successes are the metrics' business; at thousands of requests a second they would be all the log.
function level(_request: IncomingMessage, response: ServerResponse, error?: Error) {
  // 503 is the database's or the drain's state, said once elsewhere; probes and clients repeat it every second.
  if (response.statusCode === 503) return 'debug';
  if (error || response.statusCode >= 500) return 'error';
  return response.statusCode >= 400 ? 'info' : 'debug';
}
