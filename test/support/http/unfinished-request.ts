// Requests that are never completed: over a plain socket, because a client library would wait for its own body.
import { connect, type Socket } from 'node:net';

export interface UnfinishedRequest {
  method: string;
  path: string;
  headers: Record<string, string>;
  /** The part of the body that is sent. */
  start: string;
}

/** Sends it and leaves the connection open. */
export function beginRequest(url: string, { method, path, headers, start }: UnfinishedRequest): Socket {
  const { hostname, port, host } = new URL(url);
  const lines = Object.entries({ host, ...headers }).map(([name, value]) => `${name}: ${value}\r\n`);
  const socket = connect(Number(port), hostname);
  socket.write(`${method} ${path} HTTP/1.1\r\n${lines.join('')}\r\n${start}`);
  return socket;
}

/** The first bytes of the answer. */
export function answerToUnfinished(url: string, request: UnfinishedRequest): Promise<string> {
  return new Promise((resolve, reject) => {
    const socket = beginRequest(url, request);
    socket.on('error', reject);
    socket.once('data', (bytes) => {
      resolve(bytes.toString());
      socket.destroy();
    });
  });
}
