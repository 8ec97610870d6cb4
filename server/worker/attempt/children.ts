// Jobs that a handler enqueues in its own tenant. A child is identified by its parent and its key, so that a retry
// finds the child of an earlier attempt instead of creating another.

import { readLiveDaemons } from '../../daemons/live-daemons.ts';
import { retryConflicts } from '../../database/sql-errors.ts';
import { enqueueIn, type NewJob } from '../../jobs/enqueue/enqueue.ts';
import { payloadLimitBytes } from '../../jobs/enqueue/enqueue-limits.ts';
import { toNewJob } from '../../jobs/enqueue/job-request.ts';
import type { JobErrorCode } from '../../jobs/model/job-errors.ts';
import { Problem } from '../../kernel/errors.ts';
import { Fatal, Recoverable } from '../handlers/handler-errors.ts';
import type { ChildOptions } from '../handlers/job-context.ts';
import type { HandlerRun } from './handler-run.ts';
import { toStorable } from './storable.ts';

export interface ChildRequest {
  key: string;
  type: string;
  payload: unknown;
  options: ChildOptions;
  actor: string;
}

// With the parent's id it has to fit into an index.
const maxKeyLength = 300;

export class LeaseLost extends Error {}

/** Undefined: the parent's lease is lost, and nothing was enqueued. */
export async function enqueueChild(run: HandlerRun, request: ChildRequest): Promise<{ id: string } | undefined> {
  const { db, tenant, job, leaseId } = run;
  const child = await toChild(run, request);
  await admitChildren(run, [child]);
  try {
    const enqueued = await retryConflicts(() =>
      db.transaction(async (tx) => {
        const [enqueued] = await enqueueIn(tx, tenant.schema, [child], request.actor);
        // Last: finishing the parent locks its lane before its row.
        const held = await tx.query(
          `select id from ${tenant.schema}.jobs where id = $1 and lease_id = $2 and status = 'RUNNING' for share`,
          [job.id, leaseId],
        );
        if (held.length === 0 || enqueued === undefined) throw new LeaseLost();
        return enqueued;
      }),
    );
    run.onEnqueued?.([enqueued]);
    return { id: enqueued.job.id };
  } catch (error) {
    if (error instanceof LeaseLost) return undefined;
    throw error;
  }
}

/** A full queue is not the parent's error: it is retried, unless its handler catches the error and waits. */
export async function admitChildren(run: HandlerRun, children: NewJob[]): Promise<void> {
  try {
    await run.admit(children);
  } catch (error) {
    if (!(error instanceof Problem) || error.code !== 'QUEUE_FULL') throw error;
    throw new Recoverable(error.message, { code: 'QUEUE_FULL' satisfies JobErrorCode, details: error.extra });
  }
}

export async function toChild(run: HandlerRun, request: ChildRequest): Promise<NewJob> {
  const { db, tenant, jobTypes, job } = run;
  const { type, payload, options } = request;
  if (request.key.length > maxKeyLength)
    throw new RangeError(`the key of a child has at most ${maxKeyLength} characters`);
  const stored = toStorable(payload, payloadLimitBytes, 'The payload of a child');
  if (!stored.ok) throw new Fatal(stored.error.message, { code: 'INVALID_CHILD' satisfies JobErrorCode });
  const child = await toNewJob(
    {
      type,
      payload: stored.value,
      target_id: options.targetId,
      priority: options.priority,
      run_at: options.runAt,
      max_attempts: options.maxAttempts,
      author: job.author ?? undefined,
    },
    { tenant, jobTypes, liveDaemons: () => readLiveDaemons(db) },
  );
  return {
    ...child,
    traceparent: job.traceparent ?? undefined,
    parentId: job.id,
    clientRequestId: `child:${job.id}:${request.key}`,
  };
}
