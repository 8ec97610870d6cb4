// The listening socket as a Service: explicit timeouts against slow clients, a clear error for a port in use, and a
// stop that lets requests in flight finish. It passes each request to its route.
import { createServer, IncomingMessage, type RequestListener, type Server, ServerResponse } from 'node:http';
import type { AddressInfo, Socket } from 'node:net';
import type { ErrorRequestHandler, Express, NextFunction, Request, RequestHandler, Response } from 'express';
import { StartError } from '../kernel/errors.ts';
import type { Logger } from '../kernel/logger.ts';
import type { Service } from '../kernel/service.ts';
import type { Dispatcher } from './mount.ts';

interface HttpServerOptions {
  host: string;
  port: number;
  /** How long requests in flight may take once the server stops. */
  stopGraceMs?: number;
  /** How long a client may take to send its headers. */
  headersTimeoutMs?: number;
  /** How long a client may take to send its whole request, however steadily its bytes arrive. */
  requestTimeoutMs?: number;
  onRequest?(): void;
}

/** Called with the first request. */
type CreateApp = () => Express | Promise<Express>;

// Bounds the time to receive a request, not to answer it, so streams are not affected.
const defaultHeadersTimeoutMs = 10_000;
const defaultRequestTimeoutMs = 60_000;
// Longer than the idle timeout of common load balancers (60 s), which would otherwise reuse a closed connection.
const keepAliveTimeoutMs = 65_000;

export class HttpServer implements Service {
  readonly name = 'http';
  #createApp: CreateApp;
  #app: RequestListener | undefined;
  #creating: Promise<Express> | undefined;
  readonly #classes = new MessageClasses();
  #options: HttpServerOptions;
  #logger: Logger;
  #server: Server | undefined;
  #sockets = new Set<Socket>();

  constructor(createApp: CreateApp, options: HttpServerOptions, logger: Logger) {
    this.#createApp = createApp;
    this.#options = options;
    this.#logger = logger;
  }

  async start(): Promise<void> {
    if (this.#server) return;
    const headersTimeout = this.#options.headersTimeoutMs ?? defaultHeadersTimeoutMs;
    const server = createServer(
      {
        headersTimeout,
        requestTimeout: this.#options.requestTimeoutMs ?? defaultRequestTimeoutMs,
        // How often Node checks for late clients. A fifth of the timeout keeps it accurate.
        connectionsCheckingInterval: headersTimeout / 5,
        IncomingMessage: this.#classes.IncomingMessage,
        ServerResponse: this.#classes.ServerResponse,
      },
      (request, response) => this.#answer(request, response),
    );
    const { onRequest } = this.#options;
    if (onRequest !== undefined) server.on('request', onRequest);
    server.keepAliveTimeout = keepAliveTimeoutMs;
    server.on('connection', (socket) => {
      this.#sockets.add(socket);
      socket.once('close', () => this.#sockets.delete(socket));
    });
    await listen(server, this.#options);
    server.on('error', (error) => this.#logger.error({ err: error }, 'http server error'));
    this.#server = server;
    this.#logger.info({ url: this.url }, 'listening');
  }

  #answer(request: IncomingMessage, response: ServerResponse): void {
    if (this.#app !== undefined) this.#app(request, response);
    else void this.#answerFirst(request, response);
  }

  async #answerFirst(request: IncomingMessage, response: ServerResponse): Promise<void> {
    try {
      this.#creating ??= Promise.resolve(this.#createApp());
      const app = await this.#creating;
      if (this.#app === undefined) this.#classes.inherit(app);
      this.#app ??= listenerOf(app);
    } catch (error) {
      this.#creating = undefined;
      this.#logger.error({ err: error }, 'creating the HTTP API failed');
      response.writeHead(500).end();
      return;
    }
    this.#app(request, response);
  }

  /** `http://127.0.0.1:8080`, with the real port when PORT is 0. */
  get url(): string {
    const address = this.#server?.address() as AddressInfo | null | undefined;
    if (!address) throw new Error('the http server is not listening');
    const host = address.family === 'IPv6' ? `[${address.address}]` : address.address;
    return `http://${host}:${address.port}`;
  }

  async stop(): Promise<void> {
    const server = this.#server;
    if (!server) return;
    this.#server = undefined;
    const closed = new Promise((resolve) => server.close(resolve));
    // Connections that become idle while the last requests finish would stay open for their keep-alive time.
    const idle = setInterval(() => server.closeIdleConnections(), 50);
    const force = setTimeout(() => server.closeAllConnections(), this.#options.stopGraceMs ?? 10_000);
    server.closeIdleConnections();
    // Node does not count connections without a request as idle, so they would stay open for the whole grace period.
    for (const socket of this.#sockets) if (socket.bytesRead === 0) socket.destroy();
    await closed;
    clearInterval(idle);
    clearTimeout(force);
  }
}

async function listen(server: Server, { host, port }: HttpServerOptions): Promise<void> {
  await new Promise<void>((resolve, reject) => {
    server.once('error', (error: NodeJS.ErrnoException) => reject(explain(error, host, port)));
    server.listen({ host, port }, () => {
      server.removeAllListeners('error');
      resolve();
    });
  });
}

function explain(error: NodeJS.ErrnoException, host: string, port: number): Error {
  switch (error.code) {
    case 'EADDRINUSE':
      return new StartError(`port ${port} on ${host} is in use: stop the other process or set PORT to a free one`);
    case 'EACCES':
      return new StartError(
        `port ${port} on ${host} needs privileges that this user lacks: set PORT to one above 1023`,
      );
    case 'EADDRNOTAVAIL':
    case 'ENOTFOUND':
      return new StartError(`HOST ${host} is not an address of this machine`);
    default:
      return error;
  }
}

// The fast path of the daemon's own server. The table of routes is read first, and a request for one of them skips
// Express' own routing. All other requests go to the Express app. An API that is mounted in another program always goes
// through Express.

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
class MessageClasses {
  readonly IncomingMessage = class extends IncomingMessage {};
  readonly ServerResponse = class<R extends IncomingMessage = IncomingMessage> extends ServerResponse<R> {};

  /**
   * Express changes the prototype of every request and response, which slows down all later code. Here it is done once.
   */
  inherit(app: Express): void {
    Object.setPrototypeOf(this.IncomingMessage.prototype, app.request);
    Object.setPrototypeOf(this.ServerResponse.prototype, app.response);
  }
}

/** For messages of classes that inherit from the app's. */
function listenerOf(app: Express): RequestListener {
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
    // The response has started, or cannot be written: closing the connection is the only way to report the error.
    const cut = () => void request.socket.destroy();
    routes.answer(found, request, response, ((error: unknown) => {
      Promise.resolve(answerProblem(error, request, response, cut)).catch(cut);
    }) as NextFunction);
  };
}

/** Returns undefined also for an address that is not valid or not a path; the app answers it. */
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

// The API as one handler for the server of another program, with any version of Express or none. A mounted Express app
// would take settings and prototypes from the app around it.

/** Creates the app at the first request, because a hundred routes take longer than the rest of a start. */
export function mountable(create: () => Promise<Express>): RequestHandler {
  let creating: Promise<Express> | undefined;
  let app: Express | undefined;
  return async (request, response, next) => {
    if (app === undefined) {
      try {
        creating ??= create();
        app = await creating;
      } catch (error) {
        creating = undefined;
        return next(error);
      }
    }
    const restore = keepPrototypes(request, response);
    app(request, response, ((error?: unknown) => {
      restore();
      next(error);
    }) as NextFunction);
  };
}

/** Express gives request and response its own prototypes; later handlers of the host need theirs. */
function keepPrototypes(request: Request, response: Response): () => void {
  const [ofRequest, ofResponse] = [Object.getPrototypeOf(request), Object.getPrototypeOf(response)];
  return () => {
    Object.setPrototypeOf(request, ofRequest);
    Object.setPrototypeOf(response, ofResponse);
  };
}
