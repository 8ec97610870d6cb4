// A TCP proxy before the database that can cut connections, or swallow everything and say nothing, or
// greet like a pooler does: with a process id that is not the one of the process that answers.
import { connect, createServer, type Server, type Socket } from 'node:net';
import { onTestFinished } from 'vitest';
import { MessageReader, nameOfStatement, renameStatement } from './wire.ts';

export interface Proxy {
  /** The database's URL through the proxy. */
  url: string;
  /** From now on nothing gets through, in either direction, and nobody is told. */
  blackHole(): void;
  /** Passes everything again. Swallowed data stays lost, so its connections are cut. */
  heal(): void;
  /** Cuts every connection. */
  cut(): void;
  connections(): number;
}

export interface ProxyOptions {
  /** Greets with a different process id. */
  asPooler?: boolean;
  /** Gives named statements names of its own, and refuses a name that the client has used, as PgBouncer from 1.21 on. */
  renamesStatements?: boolean;
  /** Delivers no notifications, as a pooler in transaction mode. */
  dropsNotifications?: boolean;
}

export async function startProxy(
  databaseUrl: string,
  { asPooler = false, renamesStatements = false, dropsNotifications = false }: ProxyOptions = {},
): Promise<Proxy> {
  const target = new URL(databaseUrl);
  const pairs = new Set<[Socket, Socket]>();
  let dark = false;
  const server: Server = createServer((near) => {
    const far = connect(Number(target.port || 5432), target.hostname);
    const pair: [Socket, Socket] = [near, far];
    pairs.add(pair);
    const rename = renamesStatements ? renameStatements(() => near.destroy()) : (data: Buffer) => data;
    near.on('data', (data) => dark || far.write(rename(data)));
    const disguise = asPooler ? disguiseProcess() : (data: Buffer) => data;
    const filter = dropsNotifications ? withoutNotifications() : (data: Buffer) => data;
    far.on('data', (data) => dark || near.write(filter(disguise(data))));
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

function renameStatements(refuse: () => void): (data: Buffer) => Buffer {
  const reader = new MessageReader('client');
  const names = new Set<string>();
  return (data) =>
    Buffer.concat(
      reader.read(data).map((message) => {
        const name = nameOfStatement(message);
        if (!name) return message.bytes;
        if (message.type === 'P' && names.has(name)) refuse();
        if (message.type === 'C') names.delete(name);
        else names.add(name);
        return renameStatement(message, `POOLER_${name}`);
      }),
    );
}

const notification = 'A'.charCodeAt(0);

/** Leaves out whole messages; one may come in pieces. */
function withoutNotifications(): (data: Buffer) => Buffer {
  let held: Buffer = Buffer.alloc(0);
  return (data) => {
    held = Buffer.concat([held, data]);
    const passed: Buffer[] = [];
    while (held.length >= 5 && held.length >= 1 + held.readInt32BE(1)) {
      const length = 1 + held.readInt32BE(1);
      if (held[0] !== notification) passed.push(held.subarray(0, length));
      held = held.subarray(length);
    }
    return Buffer.concat(passed);
  };
}

const keyData = 'K'.charCodeAt(0);

/** Changes the process id in the server's greeting. Later data passes unchanged. */
function disguiseProcess(): (data: Buffer) => Buffer {
  let greeted = false;
  let held: Buffer = Buffer.alloc(0);
  return (data) => {
    if (greeted) return data;
    // Messages are a type, a length that counts itself, and a body; one may come in pieces.
    held = Buffer.concat([held, data]);
    let at = 0;
    while (!greeted && held.length >= at + 5 && held.length >= at + 1 + held.readInt32BE(at + 1)) {
      if (held[at] === keyData) {
        greeted = true;
        held.writeInt32BE(held.readInt32BE(at + 5) + 1, at + 5);
      }
      at += 1 + held.readInt32BE(at + 1);
    }
    const whole = held.subarray(0, greeted ? held.length : at);
    held = held.subarray(whole.length);
    return whole;
  };
}
