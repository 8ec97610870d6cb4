// A TCP proxy before the database that delivers late: requests after their client gave them up, answers after what they
// grant is over. It can also refuse every connection.
import { connect, createServer, type Server, type Socket } from 'node:net';
import { onTestFinished } from 'vitest';

export interface DelayingProxy {
  /** The database's URL through the proxy. */
  url: string;
  /** Keeps the requests of a connection, from the first that contains `text` on. Its client may go; the server waits. */
  holdRequests(text: string): void;
  /** Delivers what was kept; resolves when the server has done all of it and has closed the connection. */
  deliverRequests(): Promise<void>;
  /** Keeps all answers. */
  holdAnswers(): void;
  deliverAnswers(): void;
  /** Cuts every connection and refuses new ones, until `accept`. */
  refuse(): void;
  accept(): void;
}

interface Pair {
  near: Socket;
  far: Socket;
  /** Requests that were kept. */
  held: Buffer[] | undefined;
  answers: Buffer[];
}

export async function startDelayingProxy(databaseUrl: string): Promise<DelayingProxy> {
  const target = new URL(databaseUrl);
  const pairs = new Set<Pair>();
  let heldText: string | undefined;
  let holdsAnswers = false;
  let refuses = false;
  const server: Server = createServer((near) => {
    near.on('error', () => {});
    if (refuses) return void near.destroy();
    const far = connect(Number(target.port || 5432), target.hostname);
    const pair: Pair = { near, far, held: undefined, answers: [] };
    pairs.add(pair);
    near.on('data', (data) => {
      if (heldText !== undefined && data.includes(heldText)) pair.held ??= [];
      if (pair.held === undefined) far.write(data);
      else pair.held.push(data);
    });
    far.on('data', (data) => {
      if (holdsAnswers) pair.answers.push(data);
      else if (!near.destroyed) near.write(data);
    });
    far.on('error', () => {});
    near.on('close', () => {
      if (pair.held === undefined) far.destroy();
    });
    far.on('close', () => {
      near.destroy();
      pairs.delete(pair);
    });
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  onTestFinished(async () => {
    for (const { near, far } of pairs) for (const socket of [near, far]) socket.destroy();
    await new Promise((resolve) => server.close(resolve));
  });
  const url = new URL(databaseUrl);
  const address = server.address();
  url.host = `127.0.0.1:${typeof address === 'object' ? address?.port : ''}`;
  return {
    url: url.href,
    holdRequests: (text) => {
      heldText = text;
    },
    deliverRequests: async () => {
      heldText = undefined;
      const late = [...pairs].filter((pair) => pair.held !== undefined);
      if (late.length === 0) throw new Error('no request was held');
      await Promise.all(
        late.map(({ far, held = [] }) => {
          const closed = new Promise<void>((resolve) => far.once('close', () => resolve()));
          far.end(Buffer.concat(held));
          return closed;
        }),
      );
    },
    holdAnswers: () => {
      holdsAnswers = true;
    },
    deliverAnswers: () => {
      holdsAnswers = false;
      for (const { near, answers } of pairs) for (const data of answers.splice(0)) near.write(data);
    },
    refuse: () => {
      refuses = true;
      for (const { near, far } of pairs) for (const socket of [near, far]) socket.destroy();
    },
    accept: () => {
      refuses = false;
    },
  };
}
