import { expect, test } from 'vitest';
import { countBytes, demoHandlers } from '../../../server/demo/handlers.ts';
import { runHandler } from '../../../server/testing/fake-run.ts';

test.each(['http://127.0.0.1:9/', 'http://169.254.169.254/latest/meta-data', 'http://[::1]/', 'http://0x7f.1/'])(
  'the sample call does not reach the internal address %s',
  async (url) => {
    const httpCall = demoHandlers.find(({ type }) => type === 'demo.http');
    const run = await runHandler(httpCall!, { payload: { url } });
    expect(run).toMatchObject({ status: 'failed', recoverable: false, error: { code: 'ADDRESS_REFUSED' } });
  },
);

test('only a bounded part of an endless response is read, and the rest is cancelled', async () => {
  let sent = 0;
  let isCancelled = false;
  async function* endless() {
    try {
      for (;;) {
        sent += 1000;
        yield new Uint8Array(1000);
      }
    } finally {
      isCancelled = true;
    }
  }
  await expect(countBytes(endless(), 50_000)).rejects.toThrow('more than 50000 bytes');
  expect(sent).toBe(51_000);
  expect(isCancelled).toBe(true);
});
