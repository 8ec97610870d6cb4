// GET /api/reports/<id> says how far it is.
import { ProblemError } from 'leasehold/client';
import { client } from '../../../../leasehold.ts';

export async function GET(_: Request, { params }: { params: Promise<{ id: string }> }): Promise<Response> {
  try {
    const { status, progress, result, error } = await client.jobs.get((await params).id);
    return Response.json({ status, progress, result, error: error?.message ?? null });
  } catch (error) {
    if (!(error instanceof ProblemError)) throw error;
    return Response.json({ error: error.detail }, { status: error.status });
  }
}
