// What stands between the worker under test and the server: sees every request, and can cut the
// line (as a restart does), fall silent (as a lost network does) or answer in the server's place.
import { randomInt } from 'node:crypto';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { Socket } from 'node:net';

export interface Exchange {
  /** On performance.now(), when the request had arrived. */
  at: number;
  path: string;
  // biome-ignore lint/suspicious/noExplicitAny: the worker's words, to be judged.
  body: any;
  status?: number;
  // biome-ignore lint/suspicious/noExplicitAny: the server's.
  answer?: any;
}

export interface Canned {
  status: number;
  body: object;
}

const maxPortTries = 50;

export class FaultProxy {
  readonly exchanges: Exchange[] = [];
  /** Asked for every request; what is answered here, or never answered, does not reach the server. */
  intercept: (exchange: Exchange) => Canned | 'silence' | undefined = () => undefined;
  #target: string;
  #server: Server | undefined;
  #sockets = new Set<Socket>();
  #port = 0;
  #silent = false;

  constructor(target: string) {
    this.#target = target.replace(/\/$/, '');
  }

  get url(): string {
    return `http://127.0.0.1:${this.#port}`;
  }

  /** Also how the line comes back after a cut: at the same address. */
  async open(): Promise<void> {
    const server = createServer((request, response) => void this.#serve(request, response));
    server.on('connection', (socket) => {
      this.#sockets.add(socket);
      socket.on('close', () => this.#sockets.delete(socket));
    });
    for (let tries = 1; this.#port === 0; tries++) {
      // Below the ports of outgoing connections: while the line is cut, one of those could take the address.
      const port = 15_000 + randomInt(15_000);
      const isMine = await listen(server, port).catch((error: unknown) => {
        if (tries === maxPortTries) throw error;
      });
      if (isMine) this.#port = port;
    }
    if (!server.listening) await listen(server, this.#port);
    this.#server = server;
  }

  /** Nobody answers at this address any more, and whoever waits for an answer learns it at once. */
  async cut(): Promise<void> {
    const server = this.#server;
    this.#server = undefined;
    for (const socket of this.#sockets) socket.destroy();
    if (server) await new Promise((resolve) => server.close(resolve));
  }

  /** Requests arrive and are never answered. */
  fallSilent(): void {
    this.#silent = true;
  }

  /** What was asked in the silence is lost. */
  speakAgain(): void {
    this.#silent = false;
    for (const socket of this.#sockets) socket.destroy();
  }

  find(pattern: RegExp): Exchange[] {
    return this.exchanges.filter((exchange) => pattern.test(exchange.path));
  }

  async #serve(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const gone = new AbortController();
    response.on('close', () => gone.abort());
    try {
      const text = await read(request);
      const exchange: Exchange = { at: performance.now(), path: request.url ?? '/', body: parse(text) };
      this.exchanges.push(exchange);
      if (this.#silent) return;
      const canned = this.intercept(exchange);
      if (canned === 'silence') return;
      const answer = canned
        ? { status: canned.status, text: JSON.stringify(canned.body) }
        : await this.#forward(request, text, gone.signal);
      // Silence may have fallen while the server thought.
      if (this.#silent) return;
      exchange.status = answer.status;
      exchange.answer = parse(answer.text);
      response.writeHead(answer.status, { 'content-type': 'application/json' }).end(answer.text);
    } catch {
      response.destroy();
    }
  }

  async #forward(request: IncomingMessage, text: string, signal: AbortSignal) {
    const headers: Record<string, string> = {};
    for (const name of ['authorization', 'x-api-key', 'content-type']) {
      const value = request.headers[name];
      if (typeof value === 'string') headers[name] = value;
    }
    const method = request.method ?? 'GET';
    const body = method === 'GET' || text === '' ? {} : { body: text };
    const response = await fetch(this.#target + request.url, { method, headers, signal, ...body });
    return { status: response.status, text: await response.text() };
  }
}

function listen(server: Server, port: number): Promise<true> {
  return new Promise((resolve, reject) => {
    server.once('error', reject);
    server.listen(port, '127.0.0.1', () => resolve(true));
  });
}

export async function read(request: IncomingMessage): Promise<string> {
  const chunks: Buffer[] = [];
  for await (const chunk of request) chunks.push(chunk as Buffer);
  return Buffer.concat(chunks).toString();
}

function parse(text: string): unknown {
  try {
    return text === '' ? undefined : JSON.parse(text);
  } catch {
    return text;
  }
}
