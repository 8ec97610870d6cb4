import { createServer } from 'node:net';
import { expect, test } from 'vitest';
import { freePort } from '../../../server/embedded-postgres/cluster.ts';

test('a free port can be listened on, and is outside the range for outgoing connections', async () => {
  for (let n = 0; n < 20; n++) {
    const port = await freePort();
    expect(port).toBeLessThan(32_768);
    const server = createServer();
    await new Promise<void>((resolve, reject) => {
      server.once('error', reject);
      server.listen(port, '127.0.0.1', resolve);
    });
    await new Promise((resolve) => server.close(resolve));
  }
});
