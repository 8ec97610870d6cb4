// The shorter way of the daemon's own server to the routes of an API: the table of routes is asked first, and a request
// that it knows passes none of Express' own routing. Everything else goes to the Express app. An API that is mounted in
// another program always goes through Express.
import { IncomingMessage, type RequestListener, ServerResponse } from 'node:http';
import type { ErrorRequestHandler, Express, NextFunction, Request, RequestHandler, Response } from 'express';
import type { Dispatcher } from './mount.ts';

interface DirectRoutes {
  log: RequestHandler;
  routes: Dispatcher;
  answerProblem: ErrorRequestHandler;
}

const known = new WeakMap<Express, DirectRoutes>();

export function answerDirectly(app: Express, routes: DirectRoutes): void {
  known.set(app, routes);
}

/** The classes of requests and responses of one server. */
export class MessageClasses {
  readonly IncomingMessage = class extends IncomingMessage {};
  readonly ServerResponse = class<R extends IncomingMessage = IncomingMessage> extends ServerResponse<R> {};

  /** Express changes the prototype of every request and response, which slows down all that follows; here it is done once. */
  inherit(app: Express): void {
    Object.setPrototypeOf(this.IncomingMessage.prototype, app.request);
    Object.setPrototypeOf(this.ServerResponse.prototype, app.response);
  }
}

/** For messages of classes that inherit from the app's. */
export function listenerOf(app: Express): RequestListener {
  const direct = known.get(app);
  if (direct === undefined) return app;
  const { log, routes, answerProblem } = direct;
  return (message, answer) => {
    const found = findRoute(routes, message.url ?? '');
    if (found === undefined) return app(message, answer);
    const [request, response] = [message as Request, answer as Response];
    request.res = response;
    request.baseUrl = '';
    request.originalUrl = request.url;
    response.req = request;
    response.locals = {};
    log(request, response, nothing);
    // The response has begun, or could not: the client notices by the end of the connection.
    const cut = () => void request.socket.destroy();
    routes.answer(found, request, response, ((error: unknown) => {
      Promise.resolve(answerProblem(error, request, response, cut)).catch(cut);
    }) as NextFunction);
  };
}

/** Undefined also for an address that is not valid, or not a path: the app knows what to answer. */
function findRoute(routes: Dispatcher, url: string) {
  if (!url.startsWith('/') || url.includes('#')) return undefined;
  const end = url.indexOf('?');
  try {
    return routes.find(end === -1 ? url : url.slice(0, end));
  } catch {
    return undefined;
  }
}

function nothing(): void {}
