// POST /api/reports enqueues a report and answers at once.
import { ProblemError } from 'leasehold/client';
import type { buildReport } from '../../../jobs/report.ts';
import { client } from '../../../leasehold.ts';

export async function POST(request: Request): Promise<Response> {
  const { customer, pages } = (await request.json()) as { customer: string; pages?: number };
  try {
    const { id } = await client.enqueue<typeof buildReport>(
      'report.build',
      { customer, pages },
      {
        targetId: customer, // one report of a customer at a time
        // A form that is sent twice, with the same key, makes one report.
        idempotencyKey: request.headers.get('idempotency-key') ?? undefined,
        signal: request.signal,
      },
    );
    return Response.json({ id }, { status: 202, headers: { location: `/api/reports/${id}` } });
  } catch (error) {
    if (!(error instanceof ProblemError)) throw error;
    return Response.json({ error: error.detail, fields: error.errors }, { status: error.status });
  }
}
