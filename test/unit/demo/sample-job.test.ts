import { describe, expect, test } from 'vitest';
import { z } from 'zod';
import { sampleJob } from '../../../server/demo/demo-tenant.ts';
import { demoHandlers } from '../../../server/demo/handlers.ts';
import { defineJob } from '../../../server/worker/handlers/define-job.ts';
import { HandlerRegistry } from '../../../server/worker/handlers/handler-registry.ts';

const run = () => null;

function registryOf(...payloads: (z.ZodType | undefined)[]): HandlerRegistry {
  return new HandlerRegistry(
    payloads.map((payload, i) => defineJob({ type: `type.${i}`, run, ...(payload !== undefined && { payload }) })),
  );
}

describe('the sample job of a first start is one that the daemon accepts', () => {
  const schemas: [string, z.ZodType][] = Object.entries({
    texts: z.object({ customer: z.string().min(10).max(12), note: z.string().optional() }),
    numbers: z.object({
      pages: z.int().min(3).max(9),
      share: z.number().gt(0).lt(1),
      even: z.int().multipleOf(4).min(5),
    }),
    formats: z.object({ at: z.iso.datetime(), to: z.email(), id: z.uuid(), url: z.url(), day: z.iso.date() }),
    choices: z.object({
      kind: z.enum(['a', 'b']),
      one: z.literal(7),
      any: z.union([z.number(), z.null()]),
      on: z.boolean(),
    }),
    nested: z.object({
      items: z.array(z.object({ sku: z.string().min(1) })).min(2),
      by: z.record(z.string(), z.number()),
    }),
    told: z.discriminatedUnion('kind', [
      z.object({ kind: z.literal('x'), x: z.number() }),
      z.object({ kind: z.literal('y') }),
    ]),
    quoted: z.object({ name: z.literal("o'brien") }),
    defaults: z.object({ seconds: z.number().default(5) }),
    dates: z.object({ at: z.coerce.date() }),
  });

  test.each(schemas)('%s', (_, schema) => {
    const handlers = registryOf(schema);
    const sample = sampleJob(handlers);
    expect(sample).toMatchObject({ type: 'type.0' });
    expect(sample?.missing).toBeUndefined();
    expect(handlers.checkPayload('type.0', JSON.parse(JSON.stringify(sample?.payload)))).toMatchObject({ ok: true });
  });

  test('uses another type if the payload of the first cannot be guessed', () => {
    const secret = z.object({ code: z.string().refine((text) => text === 'open sesame') });
    expect(sampleJob(registryOf(secret, z.object({ n: z.number() })))).toEqual({ type: 'type.1', payload: { n: 1 } });
    expect(sampleJob(registryOf(secret))).toMatchObject({
      type: 'type.0',
      missing: expect.stringContaining('payload.code'),
    });
  });

  test('uses numbers that a person would choose', () => {
    const payload = z.object({ n: z.int(), m: z.int().min(0), k: z.int().max(-3) });
    expect(sampleJob(registryOf(payload))?.payload).toMatchObject({ n: 1, m: 1 });
    expect(sampleJob(registryOf(payload))?.missing).toBeUndefined();
  });

  test('is one of the demo if it is loaded, and missing without types', () => {
    expect(sampleJob(new HandlerRegistry(demoHandlers))).toEqual({ type: 'demo.echo', payload: { hello: 'world' } });
    expect(sampleJob(registryOf())).toBeUndefined();
  });
});
