// Enqueues and collects the children of a durable call in the tenant's schema.

import { retryConflicts } from '../../database/sql-errors.ts';
import { enqueueIn } from '../../jobs/enqueue/enqueue.ts';
import { childrenState, collectChildren, gate, openChildren } from '../../jobs/flows/fenced-children.ts';
import { resolveDependencies } from '../../jobs/flows/resolve-dependencies.ts';
import { jobError } from '../../jobs/model/job-errors.ts';
import { Fatal } from '../handlers/handler-errors.ts';
import { admitChildren, type ChildRequest, LeaseLost, toChild } from './children.ts';
import type { ChildrenAnswer, ChildrenRequest, HandlerRun } from './handler-run.ts';

/** Undefined: the lease no longer owns the parent, and nothing was written. */
export async function waitForChildrenIn(
  run: HandlerRun,
  request: ChildrenRequest,
  actor: string,
): Promise<ChildrenAnswer | undefined> {
  const { db, tenant, job, leaseId, config } = run;
  const { name } = request.call;
  const held = { jobId: job.id, leaseId };
  if (request.open !== undefined && !(await open(run, request, actor))) return undefined;
  const state = await childrenState(db, tenant.schema, held, name);
  const isOver = state.unfinished === 0 || (state.failed !== null && request.onFailure === 'stop');
  if (!isOver) return state;
  // Edges of children that had ended before the call: no event follows.
  await db.transaction((tx) => resolveDependencies(tx, tenant.schema, { ended: [], waiting: [job.id] }));
  if (state.unfinished > 0) return state;
  if (state.bytes > config.resultLimitBytes) throw tooLarge(name, state.bytes, config.resultLimitBytes);
  return { ...state, ends: await collectChildren(db, tenant.schema, job.id, name) };
}

async function open(
  run: HandlerRun,
  { call, open: wanted, ...options }: ChildrenRequest,
  actor: string,
): Promise<boolean> {
  const { db, tenant, job, leaseId } = run;
  const jobs = wanted !== undefined && 'jobs' in wanted ? wanted.jobs : [];
  const requests = jobs.map(({ type, payload = {}, ...child }, n): ChildRequest => {
    return { key: `fan:${call.name}:${child.key ?? n}`, type, payload, options: child, actor };
  });
  const children = await Promise.all(requests.map((request) => toChild(run, request)));
  await admitChildren(run, children);
  try {
    const enqueued = await retryConflicts(() =>
      db.transaction(async (tx) => {
        const made = await enqueueIn(tx, tenant.schema, gate(children, call.name, options), actor);
        const ids = wanted !== undefined && 'ids' in wanted ? wanted.ids : made.map((one) => one.job.id);
        // Last: finishing the parent locks its lane before its row.
        if (await openChildren(tx, tenant.schema, { jobId: job.id, leaseId }, call, ids, options)) return made;
        throw new LeaseLost();
      }),
    );
    run.onEnqueued?.(enqueued);
    run.onDependencies?.();
    return true;
  } catch (error) {
    if (error instanceof LeaseLost) return false;
    throw error;
  }
}

function tooLarge(name: string, bytes: number, limit: number): Fatal {
  const { code, message } = jobError(
    'RESULT_TOO_LARGE',
    `The results of the children of "${name}" have ${bytes} bytes; at most ${limit} are allowed. Let them return less.`,
  );
  return new Fatal(message, { code });
}
