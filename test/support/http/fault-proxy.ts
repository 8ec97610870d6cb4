// An HTTP proxy before a daemon that loses requests, loses or cuts answers, ends streams and answers in the daemon's
// place. What a client must survive.
import { createServer, request as forward, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo, Socket } from 'node:net';
import { onTestFinished } from 'vitest';

export type Fault =
  | 'none'
  /** The connection is cut before the daemon sees the request. */
  | 'dropRequest'
  /** The daemon has done it; its answer is lost. */
  | 'dropAnswer'
  /** Half of the answer arrives. */
  | 'cutAnswer'
  /** The answer is kept until `deliverAnswers`. */
  | 'lateAnswer'
  | 'tooMany'
  | 'unavailable';

interface SeenRequest {
  method: string;
  path: string;
  idempotencyKey: string | undefined;
  lastEventId: string | undefined;
}

export interface FaultProxy {
  url: string;
  requests: SeenRequest[];
  /** Asked for every request, with its number from 0. */
  plan: (request: SeenRequest, index: number) => Fault;
  /** Where requests go: a daemon that was started anew has another port. */
  setTarget(url: string): void;
  /** Answers that were kept. */
  late: (() => void)[];
  deliverAnswers(): void;
  /** Cuts every connection, also streams. */
  cutAll(): void;
}

export async function startFaultProxy(target: string): Promise<FaultProxy> {
  const sockets = new Set<Socket>();
  let daemon = new URL(target);
  const server: Server = createServer((incoming, outgoing) => void serve(proxy, daemon, incoming, outgoing));
  server.on('connection', (socket) => {
    sockets.add(socket);
    socket.on('error', () => {});
    socket.on('close', () => sockets.delete(socket));
  });
  const cutAll = () => {
    for (const socket of sockets) socket.destroy();
  };
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  onTestFinished(async () => {
    cutAll();
    await new Promise((resolve) => server.close(resolve));
  });
  const proxy: FaultProxy = {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    requests: [],
    plan: () => 'none',
    setTarget: (url) => {
      daemon = new URL(url);
    },
    late: [],
    deliverAnswers: () => {
      for (const deliver of proxy.late.splice(0)) deliver();
    },
    cutAll,
  };
  return proxy;
}

/** Repeats the faults in this order. */
export function cycle(...faults: Fault[]): FaultProxy['plan'] {
  return (_request, index) => faults[index % faults.length] ?? 'none';
}

async function serve(proxy: FaultProxy, daemon: URL, incoming: IncomingMessage, outgoing: ServerResponse) {
  const { method = 'GET', url = '/' } = incoming;
  const header = (name: string) => incoming.headers[name] as string | undefined;
  const seen = {
    method,
    path: url,
    idempotencyKey: header('idempotency-key'),
    lastEventId: header('last-event-id'),
  };
  const fault = proxy.plan(seen, proxy.requests.length);
  proxy.requests.push(seen);
  if (fault === 'dropRequest') return void incoming.socket.destroy();
  if (fault === 'tooMany') return refuse(outgoing, 429, 'TOO_MANY_REQUESTS');
  if (fault === 'unavailable') return refuse(outgoing, 503, 'DRAINING');
  const options = { host: daemon.hostname, port: daemon.port, method, path: url, headers: incoming.headers };
  const upstream = forward({ ...options, agent: false }, (answer) => {
    if (fault !== 'lateAnswer') return pass(answer, incoming, outgoing, fault);
    proxy.late.push(() => pass(answer, incoming, outgoing, 'none'));
  });
  upstream.on('error', () => incoming.socket.destroy());
  outgoing.on('close', () => upstream.destroy());
  incoming.pipe(upstream);
}

function pass(answer: IncomingMessage, incoming: IncomingMessage, outgoing: ServerResponse, fault: Fault): void {
  answer.on('error', () => incoming.socket.destroy());
  if (fault === 'none') {
    outgoing.writeHead(answer.statusCode ?? 500, answer.headers);
    outgoing.flushHeaders();
    answer.pipe(outgoing);
    answer.on('close', () => answer.complete || incoming.socket.destroy());
    return;
  }
  // The daemon has answered: what it did is done. Only the client does not learn of it.
  const chunks: Buffer[] = [];
  answer.on('data', (chunk: Buffer) => chunks.push(chunk));
  answer.on('end', () => {
    if (fault === 'dropAnswer') return void incoming.socket.destroy();
    const body = Buffer.concat(chunks);
    outgoing.writeHead(answer.statusCode ?? 500, { ...answer.headers, 'content-length': body.length });
    outgoing.write(body.subarray(0, body.length / 2), () => incoming.socket.destroy());
  });
}

function refuse(outgoing: ServerResponse, status: number, code: string): void {
  const body = JSON.stringify({ status, code, title: code, detail: `${code} by the proxy` });
  outgoing.writeHead(status, { 'content-type': 'application/problem+json', 'retry-after': '1' }).end(body);
}
