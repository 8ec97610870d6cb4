// Request ids and the access log. Headers, query strings and bodies stay out: they may hold keys.
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { RequestHandler, Response } from 'express';
import { pinoHttp } from 'pino-http';
import { v7 as uuidv7 } from 'uuid';
import type { Logger } from '../kernel/logger.ts';

// Longer than any address of the API with its ids.
const longestPath = 500;
// Lines a second about requests without a valid key. What comes beyond is counted, and told in one line.
const strangersPerSecond = 10;

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
        path: request.url.split('?', 1)[0]?.slice(0, longestPath),
      }),
      res: (response: { statusCode: number }) => ({ status: response.statusCode }),
    },
  }) as unknown as RequestHandler;
}

/** A caller's own id is kept if it is harmless in logs and headers. */
function acceptedId(given: string | string[] | undefined): string | undefined {
  return typeof given === 'string' && /^[A-Za-z0-9._:-]{1,128}$/.test(given) ? given : undefined;
}

/** Strangers may not fill the log: only so many of their requests are written. */
function levels(logger: Logger) {
  let second = 0;
  let written = 0;
  let left = 0;
  return (request: IncomingMessage, response: ServerResponse, error?: Error) => {
    const wanted = level(request, response, error);
    const isKnown = (response as Partial<Response>).locals?.caller !== undefined;
    if (isKnown || wanted === 'debug' || wanted === 'error') return wanted;
    const now = Math.floor(performance.now() / 1000);
    if (now !== second) {
      if (left > 0) logger.info({ requests: left }, 'requests without a valid key were not logged one by one');
      second = now;
      written = 0;
      left = 0;
    }
    if (written >= strangersPerSecond) {
      left++;
      return 'silent';
    }
    written++;
    return wanted;
  };
}

// Successes are the metrics' business; at thousands of requests a second they would be all the log.
function level(_request: IncomingMessage, response: ServerResponse, error?: Error) {
  // 503 is the database's or the drain's state, said once elsewhere; probes and clients repeat it every second.
  if (response.statusCode === 503) return 'debug';
  if (error || response.statusCode >= 500) return 'error';
  return response.statusCode >= 400 ? 'info' : 'debug';
}
