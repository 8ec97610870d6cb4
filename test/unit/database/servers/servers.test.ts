import type { AddressInfo } from 'node:net';
import { createServer } from 'node:net';
import { expect, onTestFinished, test } from 'vitest';
import { clientOf, type Servers } from '../../../../server/database/servers/servers.ts';

function message(type: string, body: Buffer): Buffer {
  const length = Buffer.alloc(4);
  length.writeInt32BE(body.length + 4);
  return Buffer.concat([Buffer.from(type), length, body]);
}

test('a server that accepts a connection and ends it at once does not end the process', async () => {
  const accepted = message('R', Buffer.alloc(4));
  const ready = message('Z', Buffer.from('I'));
  const ended = message('E', Buffer.from('SFATAL\0C57P01\0Mterminating connection\0\0'));
  const server = createServer((socket) => {
    socket.on('error', () => {});
    socket.once('data', () => socket.end(Buffer.concat([accepted, ready, ended])));
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  onTestFinished(() => new Promise<void>((resolve) => server.close(() => resolve())));
  const { port } = server.address() as AddressInfo;
  const servers = { isChosen: true, pick: async () => ({ host: '127.0.0.1', port }), suspect: () => {} };
  const Client = clientOf(servers as unknown as Servers);
  const client = new Client({ user: 'test', password: 'test', database: 'test' });
  const end = new Promise<void>((resolve) => client.once('end', resolve));
  await client.connect();
  await expect(client.query('select 1')).rejects.toThrow();
  await end;
});
