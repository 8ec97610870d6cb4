// Pause, cancel and skip. A job that is not running changes at once. A running job is flagged; its owner reads the flag
// with the next heartbeat and stops the handler.

import type { Database, Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { statementVariants, tenant } from '../../database/sql.ts';
import { insertEvents, whileRunning } from '../../events/log/record.ts';
import { problem } from '../../kernel/errors.ts';
import { endOpenPhases } from '../attempt/phases.ts';
import { fence } from '../claim/lease.ts';
import { holdsLane, type Job, type JobError, type StopIntent, stoppedByUser } from '../model/job.ts';
import { jobError } from '../model/job-errors.ts';
import { allows, heldStatuses, statusIn } from '../model/states.ts';
import { applyTransition } from '../transition.ts';
import { type ActionRequest, type ActionResult, actOnJob, eventData, lastEvent, refusal } from './job-action.ts';

export async function pauseJob(db: Database, schema: Schema, request: ActionRequest): Promise<ActionResult> {
  return actOnJob(db, schema, request, async (job) => {
    if (job.status === 'PAUSED') return { job, done: true };
    if (job.status === 'RUNNING') return requestStop(db, schema, job, 'pause', request);
    if (!allows('pause', job.status)) throw await refusal(db, schema, job, 'pause');
    const ids = await db.transaction((tx) =>
      applyTransition(tx, schema, {
        name: 'pause',
        jobs: [job],
        set: `held_since = now(),
              expires_at = b.expires_later,
              waiting = null,
              lease_owner = null,
              error = :error::jsonb,
              hold = :hold::jsonb`,
        values: {
          error: JSON.stringify(jobError('PAUSED', stoppedByUser.pause)),
          hold: JSON.stringify({ kind: 'user', reason: request.reason, author: request.author ?? request.actor }),
        },
        actor: request.actor,
        data: eventData(request, { kind: 'user', message: stoppedByUser.pause }),
      }),
    );
    return ids.length > 0 ? 'changed' : undefined;
  });
}

export async function cancelJob(db: Database, schema: Schema, request: ActionRequest): Promise<ActionResult> {
  return actOnJob(db, schema, request, async (job) => {
    if (job.status === 'CANCELED') return { job, done: true };
    if (job.status === 'RUNNING') return requestStop(db, schema, job, 'cancel', request);
    if (!allows('cancel', job.status)) throw await refusal(db, schema, job, 'cancel');
    return cancelNow(db, schema, job, request);
  });
}

/** Cancels a job only if it holds its lane, so that the next job of the lane can run. */
export async function skipJob(db: Database, schema: Schema, request: ActionRequest): Promise<ActionResult> {
  return actOnJob(db, schema, request, async (job) => {
    if (job.status === 'CANCELED') return { job, done: true };
    if (!holdsLane(job)) throw await refusal(db, schema, job, 'skip');
    return cancelNow(db, schema, job, request, 'skip');
  });
}

/** `skip` cancels the job only while it is on hold. */
async function cancelNow(
  db: Database,
  schema: Schema,
  job: Job,
  request: ActionRequest,
  skip?: 'skip',
): Promise<'changed' | undefined> {
  return db.transaction((tx) => cancelIn(tx, schema, job, request, skip));
}

/** Cancels the job in the caller's transaction. Returns undefined if the job cannot be canceled now. */
export async function cancelIn(
  tx: Queryable,
  schema: Schema,
  job: Pick<Job, 'id' | 'targetId'>,
  request: ActionRequest,
  skip?: 'skip',
): Promise<'changed' | undefined> {
  const ids = await cancelIdle(tx, schema, [job], {
    extraGuard: skip && statusIn(heldStatuses, 'j.status'),
    actor: request.actor,
    data: eventData(request, skip ? { skipped: true } : {}),
  });
  return ids.length > 0 ? 'changed' : undefined;
}

interface Cancellation {
  /** Otherwise the jobs keep the error they have. */
  error?: JobError | undefined;
  extraGuard?: string | undefined;
  actor: string;
  data: object;
}

/** Cancels those of the jobs that do not run, with their open phases. Returns their ids. */
export async function cancelIdle(
  tx: Queryable,
  schema: Schema,
  jobs: readonly Pick<Job, 'id' | 'targetId'>[],
  { error, ...request }: Cancellation,
): Promise<string[]> {
  if (jobs.length === 0) return [];
  const ids = await applyTransition(tx, schema, {
    name: 'cancel',
    jobs,
    set: `finished_at = now(),
              held_since = null,
              waiting = null,
              hold = null,
              lease_owner = null${error === undefined ? '' : ',\n              error = :error::jsonb'}`,
    values: { error: error && JSON.stringify(error) },
    ...request,
  });
  if (ids.length > 0) await endOpenPhases(tx, schema, ids, 'cancelled');
  return ids;
}

const flagStatement = statementVariants<{ intent: StopIntent }>(
  ({ intent }) => `
  with given as (
    select :detail::jsonb || jsonb_build_object('actor', :actor::text, 'at', now()) as detail
  ),
  flagged as (
    update ${tenant}.jobs j
       set cancel_requested = true,
           cancel_intent = :intent,
           cancel_detail = g.detail,
           updated_at = now()
      from given g
     where ${fence}
       and (j.cancel_intent is null or j.cancel_intent = 'pause')
    returning j.id, j.target_id, j.attempt, j.lease_id, j.cancel_detail
  ),
  recorded as (
    ${insertEvents(tenant, {
      source: 'flagged',
      type: `'job.${intent}_requested'`,
      actor: ':actor',
      ...whileRunning,
      data: ':detail::jsonb',
    })}
  )
  select cancel_detail from flagged`,
);

/** Flags a running job. A cancel overrides a pause; a pause does not override a cancel. */
async function requestStop(
  db: Database,
  schema: Schema,
  job: Job,
  intent: StopIntent,
  request: ActionRequest,
): Promise<ActionResult | undefined> {
  if (job.cancelRequested && job.cancelIntent === intent) return { job, done: false };
  if (job.cancelIntent === 'cancel') {
    const event = await lastEvent(db, schema, job.id, ['job.cancel_requested']);
    throw problem('CONFLICT', `A cancel was already requested by ${event?.data?.author ?? event?.actor}.`, {
      job_status: job.status,
      last_event: event && { type: event.type, actor: event.actor, at: event.at, author: event.data?.author },
    });
  }
  const [row] = await flagStatement({ intent }).query<{ cancel_detail: Job['cancelDetail'] }>(db, schema, {
    jobId: job.id,
    leaseId: job.leaseId,
    intent,
    detail: JSON.stringify(eventData(request)),
    actor: request.actor,
  });
  if (row === undefined) return undefined;
  return { job: { ...job, cancelRequested: true, cancelIntent: intent, cancelDetail: row.cancel_detail }, done: false };
}
