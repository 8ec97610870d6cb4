// A TCP proxy before the database that can cut connections, or swallow everything and say nothing.
import { connect, createServer, type Server, type Socket } from 'node:net';
import { onTestFinished } from 'vitest';

export interface Proxy {
  /** The database's URL through the proxy. */
  url: string;
  /** From now on nothing gets through, in either direction, and nobody is told. */
  blackHole(): void;
  /** Lets everything through again; what was swallowed stays lost, so its connections are cut. */
  heal(): void;
  /** Cuts every connection. */
  cut(): void;
  connections(): number;
}

export async function startProxy(databaseUrl: string): Promise<Proxy> {
  const target = new URL(databaseUrl);
  const pairs = new Set<[Socket, Socket]>();
  let dark = false;
  const server: Server = createServer((near) => {
    const far = connect(Number(target.port || 5432), target.hostname);
    const pair: [Socket, Socket] = [near, far];
    pairs.add(pair);
    near.on('data', (data) => dark || far.write(data));
    far.on('data', (data) => dark || near.write(data));
    for (const socket of pair) {
      socket.on('error', () => {});
      socket.on('close', () => {
        // Behind a black hole the other side does not learn of it.
        if (!dark) for (const other of pair) other.destroy();
        if (pair.every((one) => one.destroyed)) pairs.delete(pair);
      });
    }
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const cut = () => {
    for (const pair of pairs) for (const socket of pair) socket.destroy();
  };
  onTestFinished(async () => {
    cut();
    await new Promise((resolve) => server.close(resolve));
  });
  const url = new URL(databaseUrl);
  const address = server.address();
  url.host = `127.0.0.1:${typeof address === 'object' ? address?.port : ''}`;
  return {
    url: url.href,
    blackHole: () => {
      dark = true;
    },
    heal: () => {
      dark = false;
      cut();
    },
    cut,
    connections: () => pairs.size,
  };
}
