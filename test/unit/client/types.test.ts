// What the compiler knows of a job that is enqueued, waited for or sent in a batch. `npm run typecheck` checks it; the
// functions are never called.
import { describe, expectTypeOf, it } from 'vitest';
import type { LeaseholdClient } from '../../../server/client/client.ts';
import { jobRequest } from '../../../server/client/enqueue-requests.ts';
import { defineJob, z } from '../../../server/index.ts';

const sendInvoice = defineJob({
  type: 'invoice.send',
  payload: z.object({ invoiceId: z.string(), copies: z.number().default(1), sentAt: z.string().transform(Number) }),
  async run({ payload }) {
    expectTypeOf(payload).toEqualTypeOf<{ invoiceId: string; copies: number; sentAt: number }>();
    return { pages: payload.copies };
  },
});

const report = defineJob({
  type: 'report',
  payload: z.object({ month: z.string() }),
  phases: [
    { name: 'collect', run: async () => ({ rows: 3 }) },
    { name: 'render', run: ({ phaseResult }) => `${phaseResult('collect')?.rows} rows` },
  ],
});

const untyped = defineJob({ type: 'anything', run: () => undefined });

describe('types of a definition', () => {
  it('types payload and result by value', () => {
    async (client: LeaseholdClient) => {
      const handle = await client.enqueue(sendInvoice, { invoiceId: '7', sentAt: '0' }, { targetId: 'acme' });
      expectTypeOf((await client.jobs.wait(handle)).result).toEqualTypeOf<{ pages: number }>();
      expectTypeOf((await client.jobs.get(handle)).result).toEqualTypeOf<{ pages: number } | null>();
      // @ts-expect-error the input of the schema, not its output
      await client.enqueue(sendInvoice, { invoiceId: '7', sentAt: 0 });
      // @ts-expect-error a missing field
      await client.enqueue(sendInvoice, {});
      // @ts-expect-error an unknown option
      await client.enqueue(sendInvoice, { invoiceId: '7', sentAt: '0' }, { target: 'acme' });
    };
  });

  it('types payload and result by an imported type alone', () => {
    async (client: LeaseholdClient) => {
      const handle = await client.enqueue<typeof sendInvoice>('invoice.send', { invoiceId: '7', sentAt: '0' });
      expectTypeOf((await client.jobs.wait(handle)).result).toEqualTypeOf<{ pages: number }>();
      // @ts-expect-error another type
      await client.enqueue<typeof sendInvoice>('invoice.sent', { invoiceId: '7', sentAt: '0' });
      // @ts-expect-error a missing field
      await client.enqueue<typeof sendInvoice>('invoice.send', { invoiceId: '7' });
    };
  });

  it('types the results of phases', () => {
    async (client: LeaseholdClient) => {
      const { result } = await client.jobs.wait(await client.enqueue(report, { month: '2026-01' }));
      expectTypeOf(result.collect).toEqualTypeOf<{ rows: number } | undefined>();
      expectTypeOf(result.render).toEqualTypeOf<string | undefined>();
    };
  });

  it('types each result of a batch', () => {
    async (client: LeaseholdClient) => {
      const [invoice, monthly] = await client.enqueueMany([
        jobRequest(sendInvoice, { invoiceId: '7', sentAt: '0' }),
        jobRequest(report, { month: '2026-01' }),
      ]);
      if (invoice.ok) expectTypeOf((await client.jobs.wait(invoice)).result).toEqualTypeOf<{ pages: number }>();
      if (monthly.ok) expectTypeOf((await client.jobs.wait(monthly)).result.render).toEqualTypeOf<string | undefined>();
      // @ts-expect-error a payload of another job
      jobRequest(report, { invoiceId: '7' });
    };
  });

  it('accepts any payload if the type is unknown', () => {
    async (client: LeaseholdClient) => {
      const handle = await client.enqueue('some.type', { any: 'thing' });
      expectTypeOf((await client.jobs.wait(handle)).result).toBeUnknown();
      await client.enqueue('some.type');
      await client.enqueue(untyped, { any: 'thing' });
    };
  });
});
