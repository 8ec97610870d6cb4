// Jobs that a handler puts in. In the same tenant, known by parent and place, so that a retry finds
// the child of the attempt before instead of making another.

import { retryConflicts } from '../database/database.ts';
import { enqueueIn, type NewJob } from '../jobs/enqueue.ts';
import type { ChildOptions } from './define-job.ts';
import { Fatal } from './handler-errors.ts';
import type { HandlerRun } from './handler-run.ts';

export interface ChildRequest {
  key: string;
  type: string;
  payload: unknown;
  options: ChildOptions;
  actor: string;
}

class LeaseLost extends Error {}

/** Undefined: the parent's lease is lost, and nothing was put in. */
export async function enqueueChild(run: HandlerRun, request: ChildRequest): Promise<{ id: string } | undefined> {
  const { db, tenant, job, leaseId } = run;
  const child = toNewJob(run, request);
  try {
    const enqueued = await retryConflicts(() =>
      db.transaction(async (tx) => {
        const [enqueued] = await enqueueIn(tx, tenant.schema, [child], request.actor);
        // Last, because whoever ends the parent locks its lane before its row.
        const held = await tx.query(
          `select id from ${tenant.schema}.jobs where id = $1 and lease_id = $2 and status = 'RUNNING' for share`,
          [job.id, leaseId],
        );
        if (held.length === 0 || enqueued === undefined) throw new LeaseLost();
        return enqueued;
      }),
    );
    run.onEnqueued?.(enqueued);
    return { id: enqueued.job.id };
  } catch (error) {
    if (error instanceof LeaseLost) return undefined;
    throw error;
  }
}

function toNewJob(run: HandlerRun, { key, type, payload, options }: ChildRequest): NewJob {
  const { jobTypes, job } = run;
  const check = jobTypes?.checkPayload(type, payload ?? {});
  if (check?.ok === false) {
    throw new Fatal(`The child of type ${type} is not valid: ${check.field} ${check.message}`, {
      code: 'INVALID_CHILD',
    });
  }
  return {
    ...jobTypes?.defaults(type),
    type,
    payload: payload ?? {},
    remote: jobTypes !== undefined && !jobTypes.has(type),
    parentId: job.id,
    clientRequestId: `child:${job.id}:${key}`,
    author: job.author ?? undefined,
    traceparent: job.traceparent ?? undefined,
    targetId: options.targetId,
    priority: options.priority,
    runAt: options.runAt,
    ...(options.maxAttempts !== undefined && { maxAttempts: options.maxAttempts }),
  };
}
