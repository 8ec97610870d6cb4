import { expect, test } from 'vitest';
import { isPublicAddress, publicLookup, WebhookSender } from '../../../server/webhooks/sender.ts';

test.each([
  '127.0.0.1',
  '10.1.2.3',
  '172.16.0.1',
  '192.168.1.1',
  '169.254.169.254',
  '168.63.129.16',
  '100.100.100.200',
  '192.0.0.192',
  '0.0.0.0',
  '255.255.255.255',
  '224.0.0.1',
  '::',
  '::1',
  '::10.0.0.1',
  '::ffff:127.0.0.1',
  '::ffff:0:127.0.0.1',
  'fe80::1',
  'fec0::1',
  'fd00:ec2::254',
  '64:ff9b::7f00:1',
  '64:ff9b:1::a00:1',
  '2002:7f00:1::',
  '2001::1',
  '2001:db8::1',
  'not an address',
])('%s is not public', (address) => {
  expect(isPublicAddress(address)).toBe(false);
});

test.each(['8.8.8.8', '2606:4700::1111', '[2606:4700::1111]', '::ffff:8.8.8.8'])('%s is public', (address) => {
  expect(isPublicAddress(address)).toBe(true);
});

test.each([
  'http://127.0.0.1/',
  'http://2130706433/',
  'http://0x7f.1/',
  'http://017700000001/',
  'http://127.1/',
  'http://0/',
  'http://１２７.0.0.1/',
  'http://[::1]/',
  'http://[::ffff:127.0.0.1]/',
  'http://[::ffff:7f00:1]/',
  'http://user:word@127.0.0.1/',
  'http://169.254.169.254/latest/meta-data',
  'ftp://example.com/',
  'nonsense',
])('never connects to %s', async (url) => {
  const sender = new WebhookSender({ allowPrivate: false, timeoutMs: 60_000 });
  expect(await sender.send(url, {}, '{}')).toMatchObject({ kind: 'impossible' });
  await sender.close();
});

test('a name is refused if any of its addresses is private, and otherwise connected to at the checked address', async () => {
  const answers: Record<string, string[]> = { mixed: ['8.8.8.8', '10.0.0.1'], good: ['8.8.8.8', '8.8.4.4'] };
  const lookup = publicLookup((name, _options, callback) =>
    callback(
      null,
      (answers[name] ?? []).map((address) => ({ address, family: 4 })),
    ),
  );
  const ask = (name: string, all: boolean) =>
    new Promise((resolve) => lookup(name, { all }, (error, found) => resolve(error?.name ?? found)));
  expect(await ask('mixed', true)).toBe('AddressRefused');
  expect(await ask('nothing', true)).toBe('AddressRefused');
  expect(await ask('good', true)).toHaveLength(2);
  expect(await ask('good', false)).toBe('8.8.8.8');
});
