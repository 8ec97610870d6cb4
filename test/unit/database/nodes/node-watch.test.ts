import { once } from 'node:events';
import { type AddressInfo, createServer, type Socket } from 'node:net';
import { expect, onTestFinished, test } from 'vitest';
import { NodeWatch, serverAnswers } from '../../../../server/database/nodes/node-watch.ts';
import { createLogger } from '../../../../server/kernel/logger.ts';
import { eventually } from '../../../support/eventually.ts';

function watchOf(answers: () => Promise<boolean>) {
  const hanging: (() => void)[] = [];
  const watch = new NodeWatch({
    logger: createLogger('silent'),
    answers,
    onSilent: () => {
      for (const end of hanging.splice(0)) end();
    },
    suspectAfterMs: 5,
  });
  onTestFinished(() => watch.close());
  const hang = () => new Promise<never>((_, reject) => hanging.push(() => reject(new Error('destroyed'))));
  return { watch, hang, hanging };
}

test('statements on a node that does not answer end, and later ones fail at once until it answers', async () => {
  let answering = false;
  const { watch, hang } = watchOf(async () => answering);
  await expect(watch.use(hang)).rejects.toThrow('destroyed');
  await expect(watch.use(async () => 'ran')).rejects.toMatchObject({ code: '08006' });
  answering = true;
  await eventually(async () => expect(await watch.use(async () => 'ran')).toBe('ran'));
});

test('a long statement on a node that answers goes on', async () => {
  let asked = 0;
  const { watch, hang, hanging } = watchOf(async () => {
    asked += 1;
    return true;
  });
  const long = watch.use(hang).catch((error: Error) => error.message);
  await eventually(() => expect(asked).toBeGreaterThan(1));
  expect(await watch.use(async () => 'ran')).toBe('ran');
  expect(hanging).toHaveLength(1);
  hanging[0]?.();
  expect(await long).toBe('destroyed');
});

test('one missed answer of a busy node is no outage', async () => {
  let asked = 0;
  const { watch, hang, hanging } = watchOf(async () => ++asked % 2 === 0);
  const long = watch.use(hang).catch(() => {});
  await eventually(() => expect(asked).toBeGreaterThan(3));
  expect(hanging).toHaveLength(1);
  hanging[0]?.();
  await long;
});

async function serverThat(does: (socket: Socket) => void): Promise<string> {
  const sockets = new Set<Socket>();
  const server = createServer((socket) => {
    sockets.add(socket.on('error', () => {}));
    does(socket);
  });
  await once(server.listen(0, '127.0.0.1'), 'listening');
  onTestFinished(() => {
    for (const socket of sockets) socket.destroy();
    server.close();
  });
  return `postgres://user@127.0.0.1:${(server.address() as AddressInfo).port}/db`;
}

test('a server that refuses a session answers; one that ends the connection, or says nothing, does not', async () => {
  const fields = ['SFATAL', 'VFATAL', 'C53300', 'Mtoo many clients', ''].map((field) => `${field}\0`).join('');
  const refusal = Buffer.concat([Buffer.from('E'), Buffer.alloc(4), Buffer.from(fields)]);
  refusal.writeInt32BE(refusal.length - 1, 1);
  const refuses = await serverThat((socket) => socket.once('data', () => socket.end(refusal)));
  expect(await serverAnswers(refuses)).toBe(true);
  const ends = await serverThat((socket) => socket.destroy());
  expect(await serverAnswers(ends)).toBe(false);
  const silent = await serverThat(() => {});
  expect(await serverAnswers(silent, 50)).toBe(false);
});
