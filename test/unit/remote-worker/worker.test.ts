import { expect, test } from 'vitest';
import { LeaseholdWorker } from '../../../server/remote-worker/index.ts';

test('two slots that get the same lease start its job once', async () => {
  const job = { job_id: 'a-job', attempts: 1 };
  const lease = { lease_id: 'a-lease', ttl_sec: 600 };
  const releases: string[] = [];
  const requested: (() => void)[] = [];
  let claims = 0;
  let starts = 0;
  const answer = (body: object) => new Response(JSON.stringify(body));
  // The claim of the first slot expired, and the second has claimed the job again.
  const fetch = async (input: unknown, init?: RequestInit): Promise<Response> => {
    const path = new URL(String(input)).pathname;
    if (path.endsWith('/claim')) {
      if (++claims <= 2) return answer({ job });
      return new Promise((_, reject) => init?.signal?.addEventListener('abort', () => reject(new Error('aborted'))));
    }
    if (path.endsWith('/lease/request')) {
      // Both are answered when both have asked.
      await new Promise<void>((resolve) => {
        requested.push(resolve);
        if (requested.length === 2) for (const each of requested) each();
      });
      return answer({ approved: true, lease });
    }
    if (path.endsWith('/release')) releases.push(path);
    return answer({});
  };
  const worker = new LeaseholdWorker(
    { url: 'http://daemon', key: 'key', queue: 'queue', concurrency: 2, fetch: fetch as typeof globalThis.fetch },
    async () => {
      starts += 1;
      worker.drain();
    },
  );
  await worker.run();
  expect({ starts, releases: releases.length }).toEqual({ starts: 1, releases: 1 });
});

test('a daemon of an older version, which does not return stored calls in parts, is asked for all', async () => {
  const stored = { name: 'one', kind: 'step', position: 0, parallel: false, status: 'completed', result: 7 };
  const refusal = { code: 'INVALID_FIELD', detail: 'after is not a field of this request' };
  const released: unknown[] = [];
  const fetch = async (input: unknown, init?: RequestInit): Promise<Response> => {
    const path = new URL(String(input)).pathname;
    const body = JSON.parse(String(init?.body));
    const answer = (value: object, status = 200) => new Response(JSON.stringify(value), { status });
    if (path.endsWith('/claim')) return answer({ job: { job_id: 'a-job', attempts: 2 } });
    if (path.endsWith('/lease/request')) return answer({ approved: true, lease: { lease_id: 'a', ttl_sec: 600 } });
    if (path.endsWith('/calls'))
      return 'after' in body ? answer(refusal, 400) : answer({ cancel_intent: null, calls: [stored] });
    if (path.endsWith('/release')) released.push(body.result_data);
    return answer({});
  };
  const worker = new LeaseholdWorker(
    { url: 'http://daemon', key: 'key', queue: 'queue', fetch: fetch as typeof globalThis.fetch },
    async ({ step }) => {
      worker.drain();
      return step('one', () => 'not reached');
    },
  );
  await worker.run();
  expect(released).toEqual([7]);
});
