// A webhook receiver: a real HTTP server that records requests and answers as the test says.
import { createServer, type IncomingHttpHeaders, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterAll, beforeAll } from 'vitest';

interface Received {
  path: string;
  headers: IncomingHttpHeaders;
  text: string;
  // biome-ignore lint/suspicious/noExplicitAny: tests read messages as a receiver without types would.
  body: any;
}

export type Behave = (request: IncomingMessage, response: ServerResponse, received: Received) => void;

export interface Receiver {
  url: string;
  port: number;
  received: Received[];
  /** How it answers from now on, by path; 204 where nothing is said. */
  on(path: string, behave: Behave): void;
}

export const answer =
  (status: number, headers: Record<string, string> = {}): Behave =>
  (_request, response) => {
    response.writeHead(status, headers).end();
  };
export const hang: Behave = () => {};
/** Answers, and then keeps sending data for as long as the client reads. */
export const flood: Behave = (_request, response) => {
  response.writeHead(200);
  const chunk = Buffer.alloc(1 << 20, 'x');
  const pour = () => {
    while (!response.destroyed && response.write(chunk));
  };
  response.on('drain', pour);
  pour();
};

export function useReceiver(): Receiver {
  const receiver = { received: [] } as unknown as Receiver;
  const behaviours = new Map<string, Behave>();
  receiver.on = (path, behave) => void behaviours.set(path, behave);
  const server = createServer((request, response) => {
    const chunks: Buffer[] = [];
    response.on('error', () => {});
    request.on('error', () => {});
    request.on('data', (chunk: Buffer) => chunks.push(chunk));
    request.on('end', () => {
      const text = Buffer.concat(chunks).toString();
      const received = { path: request.url ?? '', headers: request.headers, text, body: JSON.parse(text) };
      receiver.received.push(received);
      (behaviours.get(received.path) ?? answer(204))(request, response, received);
    });
  });
  beforeAll(async () => {
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    receiver.port = (server.address() as AddressInfo).port;
    receiver.url = `http://127.0.0.1:${receiver.port}`;
  });
  afterAll(() => {
    server.closeAllConnections();
    return new Promise<void>((resolve) => server.close(() => resolve()));
  });
  return receiver;
}
