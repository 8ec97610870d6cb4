// The proxy's reading of the wire protocol: messages in pieces, and the SQL of prepared statements.
import { expect, test } from 'vitest';
import { errorAnswer, MessageReader, RequestReader, simpleQuery } from '../../support/postgres/proxies/wire.ts';

function message(type: string, body: string): Buffer {
  const head = Buffer.alloc(5);
  head.write(type);
  head.writeInt32BE(Buffer.byteLength(body) + 4, 1);
  return Buffer.concat([head, Buffer.from(body)]);
}

function startup(): Buffer {
  const bytes = Buffer.alloc(8);
  bytes.writeInt32BE(8);
  bytes.writeInt32BE(196_608, 4);
  return bytes;
}

test('messages are assembled from chunks of any size', () => {
  const bytes = Buffer.concat([startup(), simpleQuery('select 1'), message('S', '')]);
  const reader = new MessageReader('client');
  const types = [...bytes].flatMap((byte) => reader.read(Buffer.from([byte])).map(({ type }) => type));
  expect(types).toEqual(['startup', 'Q', 'S']);
  expect(new MessageReader('client').read(bytes).map(({ type }) => type)).toEqual(['startup', 'Q', 'S']);
});

test('a request has the SQL of its statement, even if it was prepared before', () => {
  const requests = new RequestReader();
  const texts = (...bytes: Buffer[]) => {
    const reader = new MessageReader('server');
    return bytes.flatMap((one) => reader.read(one)).flatMap((one) => requests.add(one)?.text ?? []);
  };
  expect(
    texts(message('P', 'claim\0select 1\0'), message('B', '\0claim\0'), message('E', '\0'), message('S', '')),
  ).toEqual(['select 1']);
  expect(texts(message('B', '\0claim\0'), message('E', '\0'), message('S', ''))).toEqual(['select 1']);
  expect(texts(simpleQuery('begin'))).toEqual(['begin']);
});

test('an error of the proxy has its SQLSTATE and the state of the transaction', () => {
  const [error, ready] = new MessageReader('server').read(errorAnswer('53100', 'no space', 'E'));
  expect(error?.type).toBe('E');
  expect(error?.bytes.toString()).toContain('C53100\0');
  expect(ready?.bytes.subarray(5).toString()).toBe('E');
});
