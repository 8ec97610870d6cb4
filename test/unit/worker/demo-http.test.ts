import { expect, test } from 'vitest';
import { httpCall } from '../../../server/demo/http-call.ts';
import { runHandler } from '../../../server/testing/fake-run.ts';

test.each(['http://127.0.0.1:9/', 'http://169.254.169.254/latest/meta-data', 'http://[::1]/', 'http://0x7f.1/'])(
  'the sample call does not reach inside: %s',
  async (url) => {
    const run = await runHandler(httpCall, { payload: { url } });
    expect(run).toMatchObject({ status: 'failed', recoverable: false, error: { code: 'ADDRESS_REFUSED' } });
  },
);
