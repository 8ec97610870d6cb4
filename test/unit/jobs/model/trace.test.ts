import { trace } from '@opentelemetry/api';
import { afterEach, expect, test } from 'vitest';
import { parseTraceparent, withEnqueueSpan, withJobSpan } from '../../../../server/jobs/model/trace.ts';

const header = '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01';
const job = { id: 'j', type: 'demo.echo', queue: 'default', targetId: null, attempt: 1, traceparent: header };

afterEach(() => trace.disable());

test('reads a traceparent, and nothing else', () => {
  expect(parseTraceparent(header)).toMatchObject({ spanId: 'b7ad6b7169203331', traceFlags: 1 });
  for (const bad of [undefined, null, '', 'x', `${header}0`, header.replace('0af7', '0AF7'), '00-0-0-01'])
    expect(parseTraceparent(bad)).toBeUndefined();
  expect(parseTraceparent(`00-${'0'.repeat(32)}-b7ad6b7169203331-01`)).toBeUndefined();
});

test("without an SDK the producer's traceparent is kept unchanged, and an invalid one is dropped", async () => {
  const about = { tenant: 'acme', type: 'demo.echo', count: 1 };
  expect(await withEnqueueSpan({ ...about, traceparent: header }, async (kept) => kept)).toBe(header);
  expect(await withEnqueueSpan({ ...about, traceparent: 'broken' }, async (kept) => kept)).toBeUndefined();
  expect(await withJobSpan(job, 'acme', async () => 7)).toBe(7);
});

test('with an SDK a run is a child of its producer, fails with its error and ends once', async () => {
  const spans: { name: string; parent: string | undefined; ended: number; failed: boolean }[] = [];
  trace.setGlobalTracerProvider({
    getTracer: () =>
      ({
        startSpan: (name: string, _options: unknown, parent: Parameters<typeof trace.getSpanContext>[0]) => {
          const seen = { name, parent: trace.getSpanContext(parent)?.spanId, ended: 0, failed: false };
          spans.push(seen);
          return {
            spanContext: () => ({ traceId: '1'.repeat(32), spanId: '2'.repeat(16), traceFlags: 1 }),
            setStatus: () => {
              seen.failed = true;
            },
            end: () => {
              seen.ended++;
            },
          };
        },
      }) as never,
  });
  const kept = await withEnqueueSpan({ tenant: 'acme', type: 't', count: 1, traceparent: header }, async (t) => t);
  expect(kept).toBe(`00-${'1'.repeat(32)}-${'2'.repeat(16)}-01`);
  await expect(withJobSpan(job, 'acme', () => Promise.reject(new Error('no')))).rejects.toThrow('no');
  expect(spans).toEqual([
    { name: 'enqueue t', parent: 'b7ad6b7169203331', ended: 1, failed: false },
    { name: 'run demo.echo', parent: 'b7ad6b7169203331', ended: 1, failed: true },
  ]);
});
